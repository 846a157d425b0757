// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Token buckets (tbf) limit the bandwidth of a pod. The bucket for what the pod receives is the
// root qdisc of the host end. What it sends goes to an ifb interface with another bucket: a
// filter redirects it there after the programs have passed it.
const redirectPrio = link.ClassifierPriority + 1

var bucketHandle = netlink.MakeHandle(1, 0)

// bucket returns the qdisc that enforces a limit on an interface.
func bucket(index int, l model.Limit, mtu int) (*netlink.Tbf, error) {
	size := sizeBucket(l, mtu)
	ticks := float64(size.burst) / float64(size.rate) * netlink.TIME_UNITS_PER_SEC * netlink.TickInUsec()
	if ticks > math.MaxUint32 {
		return nil, fmt.Errorf("a rate of %d bit/s is too low for packets of %d bytes", l.Rate, mtu)
	}
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: bucketHandle, Parent: netlink.HANDLE_ROOT},
		Rate:       size.rate, Buffer: uint32(ticks), Limit: size.limit,
	}, nil
}

// Set limits an endpoint's bandwidth. It is called before the pair is up, and again to
// repair what is missing.
func Set(s link.PairSpec, p link.Pair) error {
	if s.Bandwidth.Ingress.Rate > 0 {
		if err := setBucket(p.Index, p.Name, s.Bandwidth.Ingress, s.MTU); err != nil {
			return err
		}
	}
	if s.Bandwidth.Egress.Rate == 0 {
		return nil
	}
	index, err := ensureSender(s)
	if err != nil {
		return err
	}
	if err := setBucket(index, link.SenderName(s.ID), s.Bandwidth.Egress, s.MTU); err != nil {
		return err
	}
	return redirect(p, index)
}

func setBucket(index int, name string, l model.Limit, mtu int) error {
	if limited, err := hasBucket(index, l, mtu); err != nil || limited {
		return err
	}
	b, err := bucket(index, l, mtu)
	if err == nil {
		err = netlink.QdiscReplace(b)
	}
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w: the kernel has no tbf, load the module sch_tbf", err)
	}
	if err != nil {
		return fmt.Errorf("limit %s to %d bit/s: %w", name, l.Rate, err)
	}
	return nil
}

// hasBucket reports whether the qdisc of an interface enforces a limit.
func hasBucket(index int, l model.Limit, mtu int) (bool, error) {
	want, err := bucket(index, l, mtu)
	if err != nil {
		return false, err
	}
	found, err := link.Whole(func() ([]netlink.Qdisc, error) {
		return netlink.QdiscList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
	})
	if err != nil {
		return false, fmt.Errorf("list qdiscs of interface %d: %w", index, err)
	}
	for _, q := range found {
		if b, ok := q.(*netlink.Tbf); ok && b.Parent == netlink.HANDLE_ROOT {
			return b.Rate == want.Rate && b.Buffer == want.Buffer && b.Limit == want.Limit && b.Peakrate == 0, nil
		}
	}
	return false, nil
}

// ensureSender creates the ifb interface for what the pod sends.
func ensureSender(s link.PairSpec) (index int, err error) {
	name := link.SenderName(s.ID)
	l, err := netlink.LinkByName(name)
	if err == nil && l.Type() != "ifb" {
		return 0, fmt.Errorf("interface %s exists and is not an ifb of Isthmus: remove it", name)
	}
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		err = netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}})
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: the kernel has no ifb, load the module", err)
		}
		if err == nil {
			l, err = netlink.LinkByName(name)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("create interface %s for what the pod sends: %w", name, err)
	}
	// It has no addresses and sends nothing by itself.
	if err := link.WriteSysctls(senderSysctls(name)); err != nil {
		return 0, err
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(l); err != nil {
			return 0, fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return l.Attrs().Index, nil
}

func senderSysctls(name string) []link.Sysctl {
	return []link.Sysctl{{Path: "ipv6/conf/" + name + "/disable_ipv6", Value: "1"}}
}

// redirect redirects what the pod sends to an interface, after the programs. Packets that
// return from there skip the programs.
func redirect(p link.Pair, to int) error {
	if right, err := redirects(p.Index, to); err != nil || right {
		return err
	}
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: p.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact to %s: %w", p.Name, err)
	}
	attrs := netlink.FilterAttrs{LinkIndex: p.Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: redirectPrio, Protocol: unix.ETH_P_ALL}
	err := netlink.FilterDel(&netlink.U32{FilterAttrs: attrs}) // one that redirects elsewhere
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		err = netlink.FilterAdd(&netlink.U32{FilterAttrs: attrs, RedirIndex: to, Actions: []netlink.Action{netlink.NewMirredAction(to)}})
	}
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w: the kernel has no u32 or no mirred, load the modules cls_u32 and act_mirred", err)
	}
	if err != nil {
		return fmt.Errorf("redirect packets from %s to interface %d: %w", p.Name, to, err)
	}
	return nil
}

// redirects reports whether an interface redirects what it receives to another.
func redirects(from, to int) (bool, error) {
	filters, err := link.Whole(func() ([]netlink.Filter, error) {
		return netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: from}}, netlink.HANDLE_MIN_INGRESS)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return false, nil // without clsact
	}
	if err != nil {
		return false, fmt.Errorf("list filters of interface %d: %w", from, err)
	}
	for _, f := range filters {
		if u, ok := f.(*netlink.U32); ok && u.Priority == redirectPrio && u.RedirIndex == to {
			return true, nil
		}
	}
	return false, nil
}

// Check describes what prevents the limits of an endpoint's bandwidth. It finds nothing without an interface, whose
// absence package link reports.
func Check(s link.PairSpec, p link.Pair) (problems []string) {
	if _, err := netlink.LinkByName(p.Name); err != nil {
		return nil
	}
	check := func(index int, name string, l model.Limit) {
		if limited, err := hasBucket(index, l, s.MTU); err != nil {
			problems = append(problems, err.Error())
		} else if !limited {
			problems = append(problems, fmt.Sprintf("%s is not limited to %d bit/s", name, l.Rate))
		}
	}
	if s.Bandwidth.Ingress.Rate > 0 {
		check(p.Index, p.Name, s.Bandwidth.Ingress)
	}
	if s.Bandwidth.Egress.Rate == 0 {
		return problems
	}
	name := link.SenderName(s.ID)
	l, err := netlink.LinkByName(name)
	if err != nil || l.Type() != "ifb" || l.Attrs().Flags&net.FlagUp == 0 {
		return append(problems, fmt.Sprintf("interface %s, which limits what the pod sends, is missing or down", name))
	}
	problems = append(problems, link.CheckSysctls(senderSysctls(name))...)
	check(l.Attrs().Index, name, s.Bandwidth.Egress)
	if leads, err := redirects(p.Index, l.Attrs().Index); err != nil {
		problems = append(problems, err.Error())
	} else if !leads {
		problems = append(problems, fmt.Sprintf("packets from %s are not redirected to %s, which limits them", p.Name, name))
	}
	return problems
}

// Sweep removes the ifb interfaces of endpoints whose pair is gone.
func Sweep() error {
	links, err := link.Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	wanted := make(map[string]bool)
	for _, l := range links {
		if l.Type() == "veth" {
			wanted[link.SenderOf(l.Attrs().Name)] = true
		}
	}
	for _, l := range links {
		name := l.Attrs().Name
		if l.Type() != "ifb" || !link.IsSender(name) || wanted[name] {
			continue
		}
		if err := link.DeleteByName(name); err != nil {
			return err
		}
	}
	return nil
}
