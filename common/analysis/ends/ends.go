// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Addresses returns the addresses of one end of a flow, which is namespace/pod,
// namespace/pod@IP, node:NAME or an IP address. It returns at least one.
func Addresses(s *model.Snapshot, text string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(strings.TrimPrefix(text, "ip:")); err == nil {
		if a.Zone() != "" {
			return nil, fmt.Errorf("address %s: remove the zone", text)
		}
		return []netip.Addr{a.Unmap()}, nil
	}
	if name, ok := strings.CutPrefix(text, "node:"); ok {
		return nodeAddresses(s, name)
	}
	name, only, one := strings.Cut(text, "@")
	namespace, pod, ok := strings.Cut(name, "/")
	p, known := s.Pods.Get(model.PodID{Namespace: namespace, Name: pod})
	switch why := misread(text); {
	case known:
	case why != "":
		return nil, fmt.Errorf("%q: %s", text, why)
	case !ok || namespace == "" || pod == "":
		return nil, fmt.Errorf("%q: give namespace/pod, namespace/pod@IP or an IP address", text)
	default:
		return nil, fmt.Errorf("no pod %s%s", name, similarPods(s, namespace, pod))
	}
	ips := p.IPs
	if n, ok := s.Nodes.Get(p.Node); ok && p.HostNetwork && len(ips) == 0 {
		ips = n.Addresses
	}
	if one {
		a, err := netip.ParseAddr(only)
		if err != nil || !slices.Contains(ips, a) {
			return nil, fmt.Errorf("pod %s does not have the address %q, it has %v", name, only, ips)
		}
		return []netip.Addr{a}, nil
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("pod %s has no address yet: its status.podIP is not set", name)
	}
	return ips, nil
}

// InUse returns the addresses of one end of a flow as Addresses does, of those that packets can come from or go to now. A pod that has
// finished has none, and an address that a younger pod has, too, is not one of this pod.
func InUse(s *model.Snapshot, text string) ([]netip.Addr, error) {
	name, _, _ := strings.Cut(text, "@")
	namespace, pod, _ := strings.Cut(name, "/")
	p, isPod := s.Pods.Get(model.PodID{Namespace: namespace, Name: pod})
	if isPod && p.Finished {
		return nil, fmt.Errorf("pod %s has finished: it opens and gets no connections, and another pod may have its address", name)
	}
	all, err := Addresses(s, text)
	if !isPod || err != nil {
		return all, err
	}
	owners := s.Owners().Pods
	own := slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return owners[a] != nil && owners[a] != p })
	if len(own) == 0 {
		return nil, fmt.Errorf("pod %s: the address %s is also that of pod %s, which is younger or comes later, and decides: correct status.podIP of one of them", name, all[0], owners[all[0]].PodID)
	}
	return own, nil
}

// misread says what is wrong with a text that other commands accept as an end.
func misread(text string) string {
	kind, name, _ := strings.Cut(text, "/")
	before, port, colon := cutLast(text, ":")
	_, notNumber := strconv.Atoi(port)
	switch _, notRange := netip.ParsePrefix(text); {
	case notRange == nil:
		return "a range of addresses is not one end: give an address of it"
	case strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]"):
		return "give the address without brackets"
	case colon && notNumber == nil && (!strings.Contains(before, ":") || strings.HasPrefix(before, "[")):
		return fmt.Sprintf("give %s here, and the port %s on its own", strings.Trim(before, "[]"), port)
	case kind == "svc" || kind == "service" || kind == "services":
		return "a Service is only a destination, of commands that know Services: give a pod"
	case kind == "node" || kind == "nodes":
		return "write node:" + name
	case strings.Contains(text, "://"):
		return "a URL is not an end: give a pod or an IP address"
	}
	return ""
}

// cutLast cuts a text around the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(text, separator); i >= 0 {
		return text[:i], text[i+len(separator):], true
	}
	return text, "", false
}

func nodeAddresses(s *model.Snapshot, name string) ([]netip.Addr, error) {
	n, ok := s.Nodes.Get(name)
	switch {
	case !ok:
		return nil, fmt.Errorf("%q: no such node among the objects: add it, or name another", "node:"+name)
	case len(n.Addresses) == 0:
		return nil, fmt.Errorf("%q: the node has no address: set status.addresses", "node:"+name)
	}
	return n.Addresses, nil
}

// WithoutPods says that a namespace has no pods and which ones have some. It returns "" if the namespace has pods.
func WithoutPods(s *model.Snapshot, namespace string) string {
	var others []string
	for id := range s.Pods.All() {
		if id.Namespace == namespace {
			return ""
		}
		others = append(others, id.Namespace)
	}
	slices.Sort(others)
	others = slices.Compact(others)
	if len(others) == 0 {
		return fmt.Sprintf("namespace %s has no pods", namespace)
	}
	return fmt.Sprintf("namespace %s has no pods; pods are in %s", namespace, first(others))
}

// few is how many names an error lists.
const few = 5

// first lists a few names and the number of the others.
func first(names []string) string {
	if rest := len(names) - few; rest > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), rest)
	}
	return strings.Join(names, ", ")
}

// similarPods suggests names: a workload generates the names of its pods.
func similarPods(s *model.Snapshot, namespace, pod string) string {
	var same, all []string
	for id := range s.Pods.All() {
		if id.Namespace != namespace {
			continue
		}
		all = append(all, id.Name)
		if strings.HasPrefix(id.Name, pod) {
			same = append(same, id.Name)
		}
	}
	if len(same) == 0 {
		same = all
	}
	slices.Sort(same)
	if len(same) == 0 {
		return ": " + WithoutPods(s, namespace)
	}
	return fmt.Sprintf(": namespace %s has %s", namespace, first(same))
}

// SameFamily returns the first two addresses of one family that the protocol can use.
func SameFamily(from, to []netip.Addr, protocol model.Protocol) (src, dst netip.Addr, err error) {
	for _, a := range from {
		for _, b := range to {
			wrong := protocol == model.ICMP && a.Is6() || protocol == model.ICMPv6 && a.Is4()
			if a.Is4() == b.Is4() && !wrong {
				return a, b, nil
			}
		}
	}
	return src, dst, fmt.Errorf("the ends have no addresses of one family for %s: %s and %s", protocol, list(from), list(to))
}

// OtherFamily returns a flow between two ends with their addresses of the family that the flow does not have. It reports false if
// an end has none, as InUse reads it, or if the protocol is one of the other family only.
func OtherFamily(s *model.Snapshot, from, to string, f model.Flow) (model.Flow, bool) {
	var all [2][]netip.Addr
	for i, end := range []string{from, to} {
		found, err := InUse(s, end)
		if err != nil {
			return f, false
		}
		all[i] = slices.DeleteFunc(slices.Clone(found), func(a netip.Addr) bool { return a.Is4() == f.Src.Is4() })
	}
	src, dst, err := SameFamily(all[0], all[1], f.Protocol)
	f.Src, f.Dst = src, dst
	return f, err == nil
}

func list(all []netip.Addr) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Trim(fmt.Sprint(all), "[]")
}

// ErrNoPort means that a protocol with ports needs one.
var ErrNoPort = errors.New("give the destination port")

// Port reads the port of a flow: a number, or a name that the destination pod gives to one of its ports. to is nil for
// a destination that is not a pod. Protocols without ports have none, and 0 stands for it.
func Port(text string, p model.Protocol, to *model.Pod) (uint16, error) {
	if !p.HasPorts() {
		if text != "" {
			return 0, fmt.Errorf("%q: %s has no ports", text, p)
		}
		return 0, nil
	}
	if text == "" {
		return 0, ErrNoPort
	}
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > 65535 {
			return 0, fmt.Errorf("%d: give a number from 1 to 65535", n)
		}
		return uint16(n), nil
	}
	if strings.ContainsAny(text, "/:,") {
		return 0, fmt.Errorf("%q: give one number or name; the protocol has a flag or field of its own", text)
	}
	if to == nil {
		return 0, fmt.Errorf("%q: give a number from 1 to 65535; only pods have named ports", text)
	}
	if found := to.Resolve(text, p); len(found) > 0 {
		return found[0].Port, nil
	}
	for _, other := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		if found := to.Resolve(text, other); len(found) > 0 {
			return 0, fmt.Errorf("%q: pod %s has no %s port of that name, but %s %d: give the protocol, or a number", text, to.PodID, p, other, found[0].Port)
		}
	}
	return 0, fmt.Errorf("%q: pod %s has no %s port of that name: give a number from 1 to 65535", text, to.PodID, p)
}
