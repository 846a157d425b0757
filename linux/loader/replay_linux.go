// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/testrun"
)

// Hook is the hook at which a packet reaches one of the programs.
type Hook int

// The hooks, in the order in which packets reach them.
const (
	AtFromNode Hook = iota
	AtFromPod
	AtPreRouting
	AtForward
	AtLocalIn
	AtLocalOut
	AtToPod
)

// Replayed is a frame at a hook. Ifindex is the interface of the program. Ingress is the
// interface that the frame arrived by, 0 if the host created it. Hooked selects the netfilter
// program instead of the filters in the host stack: a test run of a filter gets neither Ingress
// nor Mark. In the host stack, the program runs Times times, at least once; the Outcome is of the last time.
type Replayed struct {
	Ifindex, Ingress int
	Mark             uint32
	Frame            []byte
	Hooked           bool
	Times            uint32
}

// Outcome is the result of a program for a frame.
type Outcome struct {
	// Passed: the frame continues. Redirected: it continues on the fast path, without the host
	// stack.
	Passed, Redirected bool
	Mark               uint32
	// Frame is valid until the next call.
	Frame []byte
}

// Replayer runs frames through the programs of a sandbox, one by one, with little overhead. It
// is not safe for concurrent use.
type Replayer struct {
	d        *DataPath
	context  [192]byte // struct __sk_buff
	after    [192]byte
	state    [48]byte // struct nf_hook_state
	frame    [8192]byte
	programs [AtToPod + 1]*ebpf.Program
	hook     *ebpf.Program // the netfilter program
	// hintsFrom is the number of records when the hints of records were empty.
	hintsFrom uint64
}

// Offsets of fields in struct __sk_buff, in bytes.
const (
	skbMark    = 8
	skbIngress = 36
	skbIfindex = 40
)

// Replay returns a Replayer of a sandbox.
func (d *DataPath) Replay() (*Replayer, error) {
	_, err := d.loadHook()
	if err := errors.Join(err, d.loadFilters()); err != nil {
		return nil, err
	}
	o, e := &d.objects, &d.egress
	return &Replayer{d: d, programs: [...]*ebpf.Program{
		AtFromNode: o.FromNode, AtFromPod: o.FromPod, AtPreRouting: e.filters[preRouting],
		AtForward: e.filters[forward], AtLocalIn: e.filters[localIn], AtLocalOut: e.filters[localOut], AtToPod: o.ToPod,
	}, hook: e.hook}, nil
}

// Hooks reports whether the kernel supports netfilter programs.
func (r *Replayer) Hooks() bool { return r.hook != nil }

// Run sends a frame through the program of a hook, in the network namespace of the calling
// thread, which must contain both interfaces.
func (r *Replayer) Run(h Hook, in Replayed) (Outcome, error) {
	if h >= AtPreRouting && h <= AtLocalOut {
		return r.runInStack(h, in)
	}
	binary.NativeEndian.PutUint32(r.context[skbMark:], in.Mark)
	binary.NativeEndian.PutUint32(r.context[skbIngress:], uint32(in.Ingress))
	binary.NativeEndian.PutUint32(r.context[skbIfindex:], uint32(in.Ifindex))
	run := testrun.Run{Data: in.Frame, Out: r.frame[:], Context: r.context[:], After: r.after[:]}
	if err := run.Of(r.programs[h]); err != nil {
		return Outcome{}, fmt.Errorf("run program of hook %d: %w", h, err)
	}
	const unspec, shot, redirect = 0xffffffff, 2, 7 // TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_REDIRECT
	code := run.Code
	out := Outcome{Passed: code != shot, Redirected: code == redirect, Mark: binary.NativeEndian.Uint32(r.after[skbMark:]), Frame: run.Out}
	if code != unspec && code != shot && code != redirect {
		return out, fmt.Errorf("program of hook %d returned %d, neither pass nor drop", h, code)
	}
	return out, nil
}

// runInStack is Run for the programs in the host stack, which change nothing.
func (r *Replayer) runInStack(h Hook, in Replayed) (Outcome, error) {
	out := Outcome{Mark: in.Mark, Frame: in.Frame}
	if !in.Hooked {
		binary.NativeEndian.PutUint32(r.context[skbMark:], in.Mark)
		binary.NativeEndian.PutUint32(r.context[skbIngress:], uint32(in.Ingress))
		binary.NativeEndian.PutUint32(r.context[skbIfindex:], uint32(in.Ifindex))
		run := testrun.Run{Data: in.Frame, Context: r.context[:], Times: in.Times}
		if err := run.Of(r.programs[h]); err != nil {
			return out, fmt.Errorf("run filter of hook %d: %w", h, err)
		}
		out.Passed = run.Code == 0 // the filter matches packets to drop
		return out, nil
	}
	// The kernel reads the Ethernet header, except on LOCAL_OUT, where there is none yet.
	const ethernet, ipv6 = 14, 0x86dd
	r.state[0] = map[Hook]byte{AtPreRouting: unix.NF_INET_PRE_ROUTING, AtLocalIn: unix.NF_INET_LOCAL_IN,
		AtForward: unix.NF_INET_FORWARD, AtLocalOut: unix.NF_INET_LOCAL_OUT}[h]
	r.state[1] = unix.NFPROTO_IPV4
	if binary.BigEndian.Uint16(in.Frame[ethernet-2:]) == ipv6 {
		r.state[1] = unix.NFPROTO_IPV6
	}
	run := testrun.Run{Data: in.Frame, Context: r.state[:], Times: in.Times}
	if h == AtLocalOut {
		run.Data = in.Frame[ethernet:]
	}
	if err := run.Of(r.hook); err != nil {
		return out, fmt.Errorf("run program of netfilter hook %d: %w", h, err)
	}
	const drop, accept = 0, 1 // NF_DROP, NF_ACCEPT
	if out.Passed = run.Code == accept; run.Code != drop && run.Code != accept {
		return out, fmt.Errorf("program of netfilter hook %d returned %d, neither pass nor drop", h, run.Code)
	}
	return out, nil
}

// Age makes all flows older by that time, and the datagrams and budgets of the first slots.
func (r *Replayer) Age(by time.Duration, slots int) error {
	o := &r.d.objects
	jiffies := uint32(by.Seconds() * float64(r.d.constants["event_cost"])) // event_cost equals the rate of the clock
	err := errors.Join(
		r.each4(func(i uint32, e *bpfobj.PodConnEntry4) error {
			e.Conn.Seen -= jiffies
			return o.Conns4.Put(i, e)
		}),
		r.each6(func(i uint32, e *bpfobj.PodConnEntry6) error {
			e.Conn.Seen -= jiffies
			return o.Conns6.Put(i, e)
		}))
	for i := range uint32(slots * datagramsOfSlot) {
		var v bpfobj.PodDatagram
		if err == nil {
			err = o.Datagrams.Lookup(i, &v)
		}
		if v.Seen -= jiffies; err == nil {
			err = o.Datagrams.Put(i, v)
		}
	}
	for i := range uint32(slots) {
		var v bpfobj.PodErrorBudget
		if err == nil {
			err = o.ErrorBudgets.Lookup(i, &v)
		}
		for dir := range v.Paid {
			v.Paid[dir] -= uint64(jiffies) * errorRate
		}
		if err == nil {
			err = o.ErrorBudgets.Put(i, v)
		}
	}
	if err != nil {
		return fmt.Errorf("age flows by %s: %w", by, err)
	}
	return nil
}

// datagramsOfSlot is the number of entries of the map datagrams for each slot: twice DATAGRAMS.
const datagramsOfSlot = 2 * 8

// Forget removes all flows, and the datagrams and budgets of the first
// slots. No packet gets one of the earlier records.
func (r *Replayer) Forget(slots int) error {
	o := &r.d.objects
	err := r.forgetFlows()
	keys, values := make([]uint32, slots*datagramsOfSlot), make([]bpfobj.PodDatagram, slots*datagramsOfSlot)
	for i := range keys {
		keys[i] = uint32(i)
	}
	_, batch := o.Datagrams.BatchUpdate(keys, values, nil)
	for i := range uint32(slots) {
		err = errors.Join(err, o.ErrorBudgets.Put(i, bpfobj.PodErrorBudget{}))
	}
	if err = errors.Join(err, batch, r.forgetRecords()); err != nil {
		return fmt.Errorf("remove flows: %w", err)
	}
	return nil
}

// roundsWithHints is how many rounds of records pass before forgetRecords clears the hints. The programs count fewer than 128.
const roundsWithHints = 32

// forgetRecords makes all records so old that no packet gets one of them.
func (r *Replayer) forgetRecords() error {
	o := &r.d.objects
	if err := r.d.AdvanceRecords(uint64(o.PostDnat.MaxEntries())); err != nil {
		return err
	}
	var count bpfobj.PodRecordCount
	if err := o.PostDnatCount.Lookup(uint32(0), &count); err != nil || count.Written-r.hintsFrom < roundsWithHints*uint64(o.PostDnat.MaxEntries()) {
		return err
	}
	r.hintsFrom = count.Written
	keys := make([]uint32, o.RecordHints.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	_, err := o.RecordHints.BatchUpdate(keys, make([]bpfobj.PodRecordHint, len(keys)), nil)
	return err
}

// forgetFlows removes all flows and their indexes, and resets flow_shares.
func (r *Replayer) forgetFlows() error {
	o := &r.d.objects
	err := errors.Join(
		r.each4(func(i uint32, e *bpfobj.PodConnEntry4) error {
			return errors.Join(o.Conns4.Put(i, bpfobj.PodConnEntry4{}), o.ConnIndex4.Delete(&e.Key))
		}),
		r.each6(func(i uint32, e *bpfobj.PodConnEntry6) error {
			return errors.Join(o.Conns6.Put(i, bpfobj.PodConnEntry6{}), o.ConnIndex6.Delete(&e.Key))
		}),
		o.LedgerHands.Put(uint32(0), bpfobj.PodLedgerHand{}))
	shares, failed := r.d.FlowShares()
	for i, n := range shares {
		if n != [2]int32{} {
			err = errors.Join(err, o.FlowShares.Put(uint32(i), bpfobj.PodFlowShare{}))
		}
	}
	return errors.Join(err, failed)
}

func (r *Replayer) each4(f func(uint32, *bpfobj.PodConnEntry4) error) error {
	return eachFlow[bpfobj.PodConnKey4](r.d.objects.ConnIndex4, r.d.objects.Conns4, f)
}

func (r *Replayer) each6(f func(uint32, *bpfobj.PodConnEntry6) error) error {
	return eachFlow[bpfobj.PodConnKey6](r.d.objects.ConnIndex6, r.d.objects.Conns6, f)
}

// eachFlow calls f for the entry of every flow. It reads the index, because a sandbox has few flows in a large array.
func eachFlow[K, E any](index, conns *ebpf.Map, f func(uint32, *E) error) error {
	var at []uint32
	if err := ReadMap(index, func(_ K, v bpfobj.PodConnIndex) { at = append(at, v.Index) }); err != nil {
		return err
	}
	for _, i := range at {
		var e E
		if err := conns.Lookup(i, &e); err != nil {
			return fmt.Errorf("read entry of map %s: %w", conns, err)
		}
		if err := f(i, &e); err != nil {
			return err
		}
	}
	return nil
}

// Unhint removes the hints of all flows, so that the next lookup of each uses the index.
func (r *Replayer) Unhint() error {
	for _, m := range []*ebpf.Map{r.d.objects.ConnHints4, r.d.objects.ConnHints6} {
		keys, values := make([]uint32, m.MaxEntries()), make([]uint32, m.MaxEntries())
		for i := range keys {
			keys[i], values[i] = uint32(i), ^uint32(0) // no such entry
		}
		if _, err := m.BatchUpdate(keys, values, nil); err != nil {
			return fmt.Errorf("remove hints: %w", err)
		}
	}
	return nil
}

// SkipRecords advances the number of records of packets by almost a whole round, so that the next record takes the place of the last
// one.
func (r *Replayer) SkipRecords() error {
	return r.d.AdvanceRecords(uint64(r.d.objects.PostDnat.MaxEntries()) - 1)
}

// Flows calls f with the ends of every flow in the table.
func (r *Replayer) Flows(f func(a, b netip.AddrPort, proto uint8)) error {
	return errors.Join(
		r.each4(func(_ uint32, e *bpfobj.PodConnEntry4) error {
			k := &e.Key
			f(netip.AddrPortFrom(netip.AddrFrom4(k.Addr[0]), k.Port[0]), netip.AddrPortFrom(netip.AddrFrom4(k.Addr[1]), k.Port[1]), k.Protocol)
			return nil
		}),
		r.each6(func(_ uint32, e *bpfobj.PodConnEntry6) error {
			k := &e.Key
			f(netip.AddrPortFrom(netip.AddrFrom16(k.Addr[0]), k.Port[0]), netip.AddrPortFrom(netip.AddrFrom16(k.Addr[1]), k.Port[1]), k.Protocol)
			return nil
		}))
}

// Stir increments the generation of the maps without a pause, as if an agent wrote all the time,
// until the caller calls stop. Nothing else may write meanwhile.
func (r *Replayer) Stir() (stop func() error) {
	done, result := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-done:
				result <- nil
				return
			default:
			}
			for range 1000 {
				err = errors.Join(err, r.d.beginGeneration())
			}
		}
		<-done
		result <- err
	}()
	return func() error {
		close(done)
		return <-result
	}
}

// Reload loads the programs of a sandbox again, with the same maps, as a restarted agent does.
// Earlier Replayers become invalid.
func (d *DataPath) Reload() error {
	if err := d.exchange(); err != nil {
		return err
	}
	was := d.egress
	d.egress = egress{}
	return errors.Join(d.loadEgress(), d.loadFilters(), was.close())
}
