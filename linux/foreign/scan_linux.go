// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Seen is an interface of another CNI plugin.
type Seen struct {
	HostEnd
	// IfName is the name of the pod's end.
	IfName string
	// Problem says why policy cannot be enforced on it; "" if it can.
	Problem string
}

// maxAddresses bounds the addresses of one family that are read from an interface. A process in the pod can add any
// number, and the node looks up a route to each.
const maxAddresses = 256

// reader reads network namespaces by the numbers that the node's namespace gives them, so that it needs no path.
type reader struct {
	host   *netlink.Handle
	socket *nl.SocketHandle
	// own are the interfaces of routes to single addresses, in all tables; nil before the first need.
	own map[netip.Addr][]int
}

func newReader() (*reader, error) {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	r := &reader{host: host}
	if err := r.open(); err != nil {
		host.Close()
		return nil, err
	}
	return r, nil
}

// open opens the socket for requests about other namespaces.
func (r *reader) open() error {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	// The kernel ignores the number of a namespace in other requests.
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		socket.Close()
		return fmt.Errorf("check netlink requests strictly: %w", err)
	}
	r.socket = &nl.SocketHandle{Socket: socket}
	return nil
}

func (r *reader) close() {
	r.host.Close()
	r.socket.Close()
}

// request returns a request about another namespace.
func (r *reader) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: r.socket}
	return req
}

// Scan lists the veth pairs with an end in the node's namespace and the other in another one. A pair whose other
// end a process in the pod has made unreadable has a Problem and no addresses, so it is not taken for that of
// another pod.
func (r *Registry) Scan() ([]Seen, error) {
	in, err := newReader()
	if err != nil {
		return nil, err
	}
	defer in.close()
	links, err := link.Whole(in.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var all []Seen
	for _, l := range links {
		if l.Type() != "veth" || l.Attrs().NetNsID < 0 || l.Attrs().ParentIndex <= 0 {
			continue
		}
		s, err := in.look(l)
		if isGone(err) || errors.Is(err, unix.EINVAL) {
			continue // the pair or its namespace went away meanwhile
		}
		if err != nil {
			err = fmt.Errorf("read the other end of interface %s: %w", l.Attrs().Name, err)
		}
		if errors.Is(err, dataplane.ErrInterfaceKind) {
			s.Problem = err.Error()
		} else if err != nil {
			return nil, err
		}
		s.Addresses = in.routed(s.HostEnd)
		all = append(all, s)
	}
	return all, nil
}

// look describes a pair by its host end. The Seen is complete but for the addresses if the error wraps
// dataplane.ErrInterfaceKind.
func (r *reader) look(l netlink.Link) (Seen, error) {
	pod, err := r.peer(l.Attrs())
	if err != nil {
		return Seen{}, err
	}
	s := Seen{IfName: pod.Attrs().Name}
	if s.HostEnd, err = describe(r.host, l); err != nil {
		s.Problem = err.Error()
	}
	s.PodMAC = pod.Attrs().HardwareAddr
	s.Addresses, err = r.addresses(l.Attrs())
	return s, err
}

// peer reads the other end of a veth pair.
func (r *reader) peer(a *netlink.LinkAttrs) (netlink.Link, error) {
	req := r.request(unix.RTM_GETLINK, 0)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(a.ParentIndex)
	req.AddData(m)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(a.NetNsID))))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, err
	}
	if len(msgs) != 1 {
		return nil, unix.ENODEV
	}
	pod, err := netlink.LinkDeserialize(nil, msgs[0])
	if err == nil && (pod.Type() != "veth" || pod.Attrs().ParentIndex != a.Index) {
		err = unix.ENODEV // another pair has the index now
	}
	return pod, err
}

// addresses reads the unicast addresses of the other end of a veth pair that other hosts can reach. The error wraps
// dataplane.ErrInterfaceKind if a process in the pod prevents that.
func (r *reader) addresses(a *netlink.LinkAttrs) (all []netip.Addr, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		found, err := link.Whole(func() ([]netip.Addr, error) { return r.dump(a, family) })
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			err = fmt.Errorf("its addresses change while they are read: %w", dataplane.ErrInterfaceKind)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// dump reads the addresses of one family, up to maxAddresses.
func (r *reader) dump(a *netlink.LinkAttrs, family int) (all []netip.Addr, err error) {
	req := r.request(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	m := nl.NewIfAddrmsg(family)
	m.Index = uint32(a.ParentIndex)
	req.AddData(m)
	req.AddData(nl.NewRtAttr(unix.IFA_TARGET_NETNSID, nl.Uint32Attr(uint32(a.NetNsID))))
	n := 0
	err = req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWADDR, func(msg []byte) bool {
		if n++; n > maxAddresses {
			r.socket.Close() // otherwise ExecuteIter would read the rest
			return false
		}
		if ip := address(msg, a.ParentIndex); ip.IsGlobalUnicast() {
			all = append(all, ip)
		}
		return true
	})
	if n <= maxAddresses {
		return all, err
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("it has more than %d addresses of one IP version: remove those that it does not need: %w", maxAddresses, dataplane.ErrInterfaceKind)
}

// address returns the address in an RTM_NEWADDR message about an interface; the zero Addr if it has none.
func address(msg []byte, index int) (ip netip.Addr) {
	if len(msg) < unix.SizeofIfAddrmsg {
		return ip
	}
	if m := nl.DeserializeIfAddrmsg(msg); int(m.Index) != index {
		return ip
	}
	attrs, err := nl.ParseRouteAttr(msg[unix.SizeofIfAddrmsg:])
	if err != nil {
		return ip
	}
	for _, a := range attrs {
		// IFA_LOCAL is the interface's own where IFA_ADDRESS is that of a point-to-point peer.
		if a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS && !ip.IsValid() {
			if found, ok := netip.AddrFromSlice(a.Value); ok {
				ip = found.Unmap()
			}
		}
	}
	return ip
}

// routed returns the addresses that the node routes to an interface. A bridge finds its ports itself. A process
// in a pod can give its interface any address, but cannot change the routes of the node. The only route to a pod may be in
// a table that the node uses for packets of other interfaces.
func (r *reader) routed(e HostEnd) (all []netip.Addr) {
	if e.Bridge != 0 {
		return e.Addresses
	}
	for _, ip := range e.Addresses {
		routes, err := r.host.RouteGet(net.IP(ip.AsSlice()))
		if err == nil && slices.ContainsFunc(routes, func(t netlink.Route) bool { return t.LinkIndex == e.Index }) || slices.Contains(r.routesTo(ip), e.Index) {
			all = append(all, ip)
		}
	}
	return all
}

// routesTo returns the interfaces of the routes to an address alone. Without an answer of the kernel there are none, so that the
// pod is reported.
func (r *reader) routesTo(ip netip.Addr) []int {
	if r.own != nil {
		return r.own[ip]
	}
	r.own = make(map[netip.Addr][]int)
	routes, err := link.Whole(func() ([]netlink.Route, error) {
		return r.host.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil
	}
	for _, t := range routes {
		if t.Dst == nil || t.Type != unix.RTN_UNICAST {
			continue
		}
		if to, ok := netip.AddrFromSlice(t.Dst.IP); ok {
			if ones, bits := t.Dst.Mask.Size(); ones == bits {
				r.own[to.Unmap()] = append(r.own[to.Unmap()], t.LinkIndex)
			}
		}
	}
	return r.own[ip]
}

// Handle names an interface. Indexes are not reused before the node restarts, so the handle contains its boot ID.
func (r *Registry) Handle(e HostEnd) string { return handle(r.boot, e.Index, e.PeerIndex) }

func handle(boot string, index, peer int) string {
	return fmt.Sprintf("%s%s:%d:%d", dataplane.HandlePrefix, boot, index, peer)
}

// parseHandle returns the indexes of a handle of this boot.
func parseHandle(s, boot string) (index, peer int, err error) {
	parts := strings.Split(strings.TrimPrefix(s, dataplane.HandlePrefix), ":")
	if len(parts) == 3 {
		var bad [2]error
		index, bad[0] = strconv.Atoi(parts[1])
		peer, bad[1] = strconv.Atoi(parts[2])
		if bad == [2]error{} && index > 0 && peer > 0 && handle(parts[0], index, peer) == s {
			if parts[0] != boot {
				return 0, 0, fmt.Errorf("interface %d existed before the node restarted: %w", index, dataplane.ErrNoNetNS)
			}
			return index, peer, nil
		}
	}
	return 0, 0, fmt.Errorf("handle %q of an interface is not valid: %w", s, dataplane.ErrInterfaceKind)
}

// findHandle returns the host end that a handle names.
func findHandle(s string, want []netip.Addr) (HostEnd, error) {
	boot, err := link.BootID()
	if err != nil {
		return HostEnd{}, err
	}
	index, peer, err := parseHandle(s, boot)
	if err != nil {
		return HostEnd{}, err
	}
	in, err := newReader()
	if err != nil {
		return HostEnd{}, err
	}
	defer in.close()
	host, err := in.host.LinkByIndex(index)
	if isGone(err) || err == nil && (host.Type() != "veth" || host.Attrs().ParentIndex != peer || host.Attrs().NetNsID < 0) {
		return HostEnd{}, fmt.Errorf("interface %d does not exist any more: %w", index, dataplane.ErrNoNetNS)
	}
	if err != nil {
		return HostEnd{}, fmt.Errorf("find interface %d: %w", index, err)
	}
	found, err := in.look(host)
	if err != nil {
		return HostEnd{}, fmt.Errorf("read the other end of interface %s: %w", host.Attrs().Name, err)
	}
	if found.Problem != "" {
		return HostEnd{}, fmt.Errorf("%s: %w", found.Problem, dataplane.ErrInterfaceKind)
	}
	for _, ip := range want {
		if !slices.Contains(found.Addresses, ip) {
			return HostEnd{}, fmt.Errorf("the other end of interface %s does not have the address %s: %w", found.Name, ip, dataplane.ErrInterfaceKind)
		}
	}
	return found.HostEnd, nil
}

// Held returns the claim for which an interface drops every packet; "" if there is none.
func (r *Registry) Held(handle string) string { return r.held[handle] }

// Forget removes the claims of interfaces that are not among the handles.
func (r *Registry) Forget(present []string) error {
	next := make(map[string]string)
	for _, h := range present {
		if claim := r.held[h]; claim != "" {
			next[h] = claim
		}
	}
	if len(next) == len(r.held) {
		return nil
	}
	return r.drop(r.ends, next)
}

// Owner returns the endpoint of an interface; "" if it has none.
func (r *Registry) Owner(e HostEnd) model.EndpointID {
	for id, end := range r.ends {
		if end.Index == e.Index && end.PeerIndex == e.PeerIndex {
			return id
		}
	}
	return ""
}
