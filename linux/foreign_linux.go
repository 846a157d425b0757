// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/foreign"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// In policy mode another CNI plugin makes the interfaces of pods. The Backend attaches programs to
// them and changes nothing else.

// ends are the interfaces of pods in policy mode.
type ends struct {
	*foreign.Registry // nil in full mode
	// applied is true once a State was applied.
	applied bool
	// closed are the indexes of interfaces without an endpoint, by name. Their programs drop
	// every packet until the other CNI plugin removes the interface.
	closed  map[string]int
	further further
}

// openForeign opens the registry. Interfaces with our programs and without an endpoint stay
// closed.
func (b *Backend) openForeign() (err error) {
	if b.ends.Registry, err = foreign.Open(b.cfg.StateDir); err != nil {
		return err
	}
	b.ends.closed = make(map[string]int)
	b.ends.further.inForce = make(map[netip.Addr]model.EndpointID)
	if err := b.followNames(); err != nil {
		return err
	}
	names, err := b.path.Attached()
	if err != nil {
		return err
	}
	older, err := b.path.OlderAttached()
	if err != nil {
		return err
	}
	maps.Copy(names, older)
	for name := range names {
		if index, err := link.Index(name); err == nil {
			b.ends.closed[name] = index
		}
	}
	if !b.tcx { // classifiers have no pins
		classified, err := link.Classified()
		if err != nil {
			return err
		}
		maps.Copy(b.ends.closed, classified)
	}
	for _, e := range b.ends.All() {
		delete(b.ends.closed, e.Name)
	}
	return nil
}

// expectReturns writes the bridges of pods that return to one after mode full. Its programs must find these
// instead of the routes to other nodes.
func (b *Backend) expectReturns() error {
	if !b.cfg.PolicyOnly {
		return nil
	}
	registry, err := foreign.Read(b.cfg.StateDir)
	if err != nil {
		return err
	}
	ways := make(map[netip.Prefix]loader.NodeRoute)
	for _, end := range registry.All() {
		for _, ip := range end.Addresses {
			if end.Return == foreign.ReturnRequested {
				ways[netip.PrefixFrom(ip, ip.BitLen())] = loader.NodeRoute{Index: end.Bridge}
			}
		}
	}
	if len(ways) == 0 {
		return nil
	}
	b.step("expect pods on their bridge")
	return b.path.SetNodeRoutes(ways)
}

// list returns the host ends of all endpoints.
func (b *Backend) list() ([]link.Found, error) {
	if b.ends.Registry == nil {
		return link.List()
	}
	found, err := b.ends.List()
	all := make([]link.Found, 0, len(found))
	for _, f := range found {
		all = append(all, link.Found{Name: f.Name, Index: f.Index, ID: f.ID, Up: true})
	}
	return all, err
}

// hostName returns the name of the host end of an endpoint.
func (b *Backend) hostName(id model.EndpointID) string {
	if b.ends.Registry == nil {
		return link.HostName(id)
	}
	e, _ := b.ends.Get(id)
	return e.Name
}

// addForeign attaches programs to the interface of a pod. They deny everything until an Apply
// names the endpoint.
func (b *Backend) addForeign(spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	if spec.Bandwidth != (model.Bandwidth{}) || len(spec.HostPorts) > 0 {
		return dataplane.Attachment{}, fmt.Errorf("pod %s: host ports and bandwidth are left to the plugin that makes the interface: %w", spec.Pod, errors.ErrUnsupported)
	}
	end, err := foreign.Find(spec.NetNS, spec.IfName, spec.IPs)
	if errors.Is(err, dataplane.ErrNoNetNS) {
		err = b.confirmGone(spec, err)
	}
	if err != nil {
		return dataplane.Attachment{}, err
	}
	for id, other := range b.ends.All() {
		if id == spec.ID || other.Index != end.Index || other.PeerIndex != end.PeerIndex {
			continue
		}
		if other.PodMAC.String() == end.PodMAC.String() {
			return dataplane.Attachment{}, fmt.Errorf("interface %s belongs to endpoint %s: %w", end.Name, id, dataplane.ErrInterfaceKind)
		}
		if err := b.closeForeign(id); err != nil { // its interface is gone, and its DEL is still to come
			return dataplane.Attachment{}, err
		}
	}
	if err := b.checkMAC(spec.ID, end); err != nil {
		return dataplane.Attachment{}, err
	}
	if err := b.freeName(end); err != nil {
		return dataplane.Attachment{}, err
	}
	if was, ok := b.ends.Get(spec.ID); ok {
		end = end.Returning(was)
	}
	_, known := b.specs[spec.ID]
	b.pods[spec.ID] = spec.Pod
	if err := b.attachForeign(spec, end); err != nil {
		if !known {
			delete(b.pods, spec.ID)
		}
		return dataplane.Attachment{}, err
	}
	b.specs[spec.ID] = link.PairSpec{ID: spec.ID, NetNS: spec.NetNS, IfName: spec.IfName, IPs: spec.IPs}
	b.components.EndpointAdded(spec)
	if err := b.shareBridge(end); err != nil {
		return dataplane.Attachment{}, err
	}
	a := dataplane.Attachment{HostIfName: end.Name, HostMAC: end.HostMAC, MAC: end.PodMAC, MTU: end.MTU}
	for _, ip := range spec.IPs {
		a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return a, nil
}

// confirmGone returns the error about a namespace that was not found. It wraps dataplane.ErrNoNetNS only if the interface
// of the endpoint is gone, too: the agent may not see the path of the namespace.
func (b *Backend) confirmGone(spec dataplane.EndpointSpec, missing error) error {
	found, err := b.ends.List()
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.ID == spec.ID {
			return fmt.Errorf("pod %s: the agent does not see %s, and interface %s still exists: mount the directory of the network namespaces into the agent's container: %w",
				spec.Pod, spec.NetNS, f.Name, dataplane.ErrInterfaceKind)
		}
	}
	return missing
}

func (b *Backend) attachForeign(spec dataplane.EndpointSpec, end foreign.HostEnd) error {
	was, ok := b.ends.Get(spec.ID)
	moved := ok && was.Index != end.Index
	if moved {
		if err := b.path.DropEndpoint(was.Index); err != nil {
			return err
		}
	}
	end.Addresses = spec.IPs
	b.step("record interface")
	if err := b.ends.Put(spec.ID, end); err != nil {
		// The pod was under policy: a full disk must not leave its next interface open.
		if moved && !spec.Observed && !b.layout.State().Policy.Endpoints[spec.ID].Observed {
			err = errors.Join(err, b.attachClosed(end))
		}
		return err
	}
	add := b.layout.AddSlot
	if spec.Observed {
		add = b.layout.AddObservedSlot
	}
	_, had := b.layout.Slot(spec.ID)
	slot, err := b.addSlot(spec.ID, add)
	if err != nil {
		return err
	}
	b.step("take addresses")
	err = b.takeFurther(spec.IPs)
	if err == nil && !had {
		err = b.dropFurther(spec.ID, slot.Index)
	}
	if err != nil {
		return err
	}
	b.step("write slot")
	if err := b.path.WriteSlot(slot); err != nil {
		return err
	}
	b.step("register endpoint")
	if err := b.registerForeign(end.Index, foreignEntry(slot.Index, spec.IPs, end)); err != nil {
		return err
	}
	b.step("attach programs")
	if err := b.classify(end.Name, end.Index); err != nil {
		return err
	}
	if b.tcx && !b.underOlder(end.Index) {
		b.linked[spec.ID] = true
	}
	delete(b.ends.closed, end.Name)
	return b.ends.Hold(b.ends.Handle(end), "")
}

// registerForeign writes the entry of an interface to the maps, or keeps it for the end of an upgrade.
func (b *Backend) registerForeign(index int, e bpfobj.PodEndpoint) error {
	if b.underOlder(index) {
		b.upgrade.waiting[index] = e
		return nil
	}
	return b.path.PutQueuedEndpoint(index, e)
}

// foreignEntry returns the map entry of an interface. Without a queue of ours it still counts as
// queued: no fast path leads to or from it, because the other CNI plugin relies on the host stack.
func foreignEntry(slot uint32, ips []netip.Addr, end foreign.HostEnd) bpfobj.PodEndpoint {
	e := bpfobj.PodEndpoint{Slot: slot}
	copy(e.Mac[:], end.PodMAC)
	copy(e.HostMac[:], end.HostMAC)
	for _, ip := range ips {
		if ip.Is6() {
			e.Ip6 = ip.As16()
		} else {
			e.Ip4 = ip.As4()
		}
	}
	return e
}

// shareBridge announces the MAC of a bridge to its other ports. The kernel may change it with every new
// port.
func (b *Backend) shareBridge(end foreign.HostEnd) error {
	if end.Bridge == 0 {
		return nil
	}
	for id, other := range b.ends.All() {
		if other.Bridge != end.Bridge || other.HostMAC.String() == end.HostMAC.String() {
			continue
		}
		slot, ok := b.layout.Slot(id)
		if !ok {
			continue
		}
		other.HostMAC = end.HostMAC
		b.step("follow bridge")
		if err := b.registerForeign(other.Index, foreignEntry(slot, other.Addresses, other)); err != nil {
			return err
		}
		if err := b.ends.Put(id, other); err != nil {
			return err
		}
	}
	return nil
}

// programForeign attaches the programs at once to where they stay: an interface of another CNI
// plugin may carry packets already, and gets no qdisc of ours where the kernel has tcx.
func (b *Backend) programForeign(name string, index int) error {
	if b.tcx {
		return b.path.Attach(name, index)
	}
	linked, err := b.path.Linked(name, index)
	if err != nil || linked {
		return err
	}
	length, has, err := link.BeforeClsact(index)
	if err != nil {
		return err
	}
	if !has {
		b.step("record qdisc")
		if err := b.ends.AddsClsact(index, length); err != nil {
			return err
		}
	}
	return link.SetClassifiers(index, b.classifiers())
}

// closeForeign forgets an endpoint. Its programs stay and drop every packet, because the other
// CNI plugin removes the interface later. DEL may come after the ADD of a later endpoint, whose interface has the
// name or the index of this one: those stay.
func (b *Backend) closeForeign(id model.EndpointID) error {
	end, known := b.ends.Get(id)
	later := b.later(id, end)
	b.step("close interface")
	if known && !later {
		if err := b.path.DropEndpoint(end.Index); err != nil {
			return err
		}
		if b.underOlder(end.Index) { // the older programs know the endpoint
			b.step("attach programs beside older")
			delete(b.upgrade.waiting, end.Index)
			if err := b.programForeign(end.Name, end.Index); err != nil {
				return err
			}
		}
	}
	if slot, ok := b.layout.Slot(id); ok {
		if err := b.dropFurther(id, slot); err != nil {
			return err
		}
	}
	delete(b.specs, id)
	delete(b.linked, id)
	delete(b.pods, id)
	if slot, ok := b.layout.DropSlot(id); ok {
		b.step("forget endpoint")
		if err := b.path.WriteSlot(slot); err != nil {
			return err
		}
	}
	if !known {
		return nil
	}
	b.ends.closed[end.Name] = end.Index
	b.step("forget interface")
	if err := b.ends.Remove(id); err != nil {
		return err
	}
	return b.sweepClosed()
}

// later reports whether the interface of another endpoint has the index of an end (see drops).
func (b *Backend) later(id model.EndpointID, end foreign.HostEnd) bool {
	for other, o := range b.ends.All() {
		if other != id && o.Index == end.Index {
			return true
		}
	}
	return false
}

var _ dataplane.Follower = (*Backend)(nil)

// Follow implements dataplane.Follower. It follows what the other CNI plugin does with the interfaces: it may
// create one again, change the MAC of a bridge, or move an interface to a bridge.
func (b *Backend) Follow(ctx context.Context) error {
	if b.ends.Registry == nil || b.layout == nil {
		return nil
	}
	found, err := b.ends.List()
	if err != nil {
		return err
	}
	seen := make(map[model.EndpointID]foreign.Found)
	renamed := false
	for _, f := range found {
		seen[f.ID] = f
		was, _ := b.ends.Get(f.ID)
		renamed = renamed || f.Name != was.Name && loader.Pinnable(f.Name)
	}
	errs := []error{b.ends.Flush(), b.followFurther()}
	if renamed {
		errs = append(errs, b.followNames())
	}
	if !b.path.QueriesConntrack() && b.path.Older() == "" {
		_, err := b.trackConnections()
		errs = append(errs, err)
	}
	for id, s := range b.specs {
		f, ok := seen[id]
		was, _ := b.ends.Get(id)
		if next := b.returned(was, f); ok && next != was.Return {
			was.Return = next
			errs = append(errs, b.ends.Put(id, was))
		}
		if ok && (f.Problem != "" || f.Bridge == was.Bridge && f.HostMAC.String() == was.HostMAC.String()) {
			continue
		}
		spec := dataplane.EndpointSpec{ID: id, Pod: b.pods[id], NetNS: s.NetNS, IfName: s.IfName, IPs: s.IPs}
		_, err := b.addForeign(spec)
		if errors.Is(err, dataplane.ErrNoNetNS) || errors.Is(err, dataplane.ErrInterfaceKind) {
			continue // Endpoints reports it; a pod that is gone has no interface
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("attach the new interface of pod %s: %w", spec.Pod, err))
			continue
		}
		b.log.Warn("the interface of a pod changed", "pod", spec.Pod, "interface", b.hostName(id))
		b.repairs.Add(1)
		errs = append(errs, b.components.Sync(ctx, time.Now()))
	}
	return errors.Join(append(errs, b.sweepClosed())...)
}

// returned is the next stage of an interface that moves back to a bridge. The programs accept its packets from
// the bridge once a State was applied.
func (b *Backend) returned(was foreign.HostEnd, now foreign.Found) foreign.Return {
	switch {
	case now.Return == "":
		return "" // it is a port of the bridge
	case b.ends.applied:
		return foreign.ReturnReady
	}
	return was.Return
}

// checkForeign describes the problems of the interface of an endpoint.
func (b *Backend) checkForeign(s link.PairSpec) (problems, inPod []string) {
	now, err := foreign.Find(s.NetNS, s.IfName, s.IPs)
	if err != nil {
		return []string{err.Error()}, nil
	}
	was, _ := b.ends.Get(s.ID)
	if now.Index != was.Index {
		problems = append(problems, fmt.Sprintf("its interface is %s, policy is on %s", now.Name, was.Name))
	}
	if now.PodMAC.String() != was.PodMAC.String() {
		problems = append(problems, fmt.Sprintf("interface %s in %s has MAC %s, was attached with %s", s.IfName, s.NetNS, now.PodMAC, was.PodMAC))
	}
	if b.ends.further.wanted == nil {
		return problems, nil // an Apply must say first which addresses are the pod's
	}
	if unknown := unknownAddresses(now.Addresses, slices.Concat(s.IPs, b.ends.further.has(s.ID))); unknown != "" {
		effect := "is dropped"
		if b.layout != nil && b.layout.State().Policy.Endpoints[s.ID].Observed {
			effect = "passes until policy is enforced"
		}
		inPod = append(inPod, fmt.Sprintf("interface %s also has the addresses %s, which neither the API nor the result of its network plugin gives to this pod alone: every packet from and to them %s: remove them, or restart the pod if its network plugin assigned them",
			s.IfName, unknown, effect))
	}
	return problems, inPod
}

// maxUnknown bounds the addresses that a report names: a process in the pod can add any number.
const maxUnknown = 4

// unknownAddresses names the addresses that are not among those of the pod.
func unknownAddresses(has, pod []netip.Addr) string {
	var unknown []string
	for _, ip := range has {
		if !slices.Contains(pod, ip) {
			unknown = append(unknown, ip.String())
		}
	}
	if more := len(unknown) - maxUnknown; more > 0 {
		unknown = append(unknown[:maxUnknown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(unknown, ", ")
}

// foreignPods returns the addresses of the pods by how the host receives their packets.
func (b *Backend) foreignPods() foreign.Pods {
	p := foreign.Pods{Bridged: make(map[netip.Addr]int)}
	for id, end := range b.ends.All() {
		for _, ip := range slices.Concat(end.Addresses, b.ends.further.has(id)) {
			if end.Bridge != 0 {
				p.Bridged[ip] = end.Bridge
			} else {
				p.Routed = append(p.Routed, ip)
			}
		}
	}
	return p
}
