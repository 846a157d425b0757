// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// allParts are the parts of an attachment, in the order of their creation: default deny before anything
// can send.
var allParts = [...]string{"slot", "deny", "interface", "addresses", "routes"}

// endpoint is an attachment, perhaps incomplete.
type endpoint struct {
	spec  dataplane.EndpointSpec
	parts map[string]bool
	inPod []string // what the pod changed
}

func (e *endpoint) missing() []string {
	var parts []string
	for _, p := range allParts {
		if !e.parts[p] {
			parts = append(parts, p)
		}
	}
	return parts
}

// unenforced reports whether a part is missing without which policy has no effect.
func (e *endpoint) unenforced() bool {
	return !e.parts["slot"] || !e.parts["deny"] || !e.parts["interface"]
}

// AddEndpoint implements Backend.
func (f *Fake) AddEndpoint(ctx context.Context, spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	if err := f.enter(); err != nil {
		return dataplane.Attachment{}, err
	}
	defer f.leave()
	e, isNew, err := f.begin(spec)
	if err != nil {
		return dataplane.Attachment{}, fmt.Errorf("add endpoint %s: %w", spec.ID, err)
	}
	for _, part := range allParts {
		if err := f.step(ctx, "add."+part); err != nil {
			if isNew {
				f.mu.Lock()
				delete(f.attached, spec.ID)
				f.mu.Unlock()
			}
			return dataplane.Attachment{}, fmt.Errorf("add endpoint %s: %w", spec.ID, err)
		}
		f.mu.Lock()
		f.attached[spec.ID] = e
		e.parts[part] = true
		f.mu.Unlock()
	}
	f.mu.Lock()
	e.inPod = nil // written again
	a := attachment(spec)
	a.NetNSID = f.netNSID(spec.NetNS)
	f.mu.Unlock()
	f.done("add", string(spec.ID))
	return a, nil
}

// begin checks a spec against the existing attachments.
func (f *Fake) begin(spec dataplane.EndpointSpec) (e *endpoint, isNew bool, err error) {
	if err := f.checkSpec(spec); err != nil {
		return nil, false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone[spec.NetNS] || spec.NetNSID != "" && spec.NetNSID != f.netNSID(spec.NetNS) {
		return nil, false, fmt.Errorf("%s: %w", spec.NetNS, dataplane.ErrNoNetNS)
	}
	for id, other := range f.attached {
		if id == spec.ID {
			continue
		}
		if other.spec.NetNS == spec.NetNS && other.spec.IfName == spec.IfName {
			return nil, false, fmt.Errorf("%s of %s: %w", spec.IfName, id, dataplane.ErrInterfaceExists)
		}
		for _, a := range spec.IPs {
			if slices.Contains(other.spec.IPs, a) {
				return nil, false, fmt.Errorf("address %s is in use by endpoint %s", a, id)
			}
		}
	}
	if e := f.attached[spec.ID]; e != nil {
		if e.spec.NetNS != spec.NetNS || !slices.Equal(e.spec.IPs, spec.IPs) || e.spec.Pod != spec.Pod ||
			e.spec.Bandwidth != spec.Bandwidth || !e.spec.DNS.Equal(spec.DNS) {
			return nil, false, fmt.Errorf("is attached as %+v, not as %+v", e.spec, spec)
		}
		return e, false, nil
	}
	if f.foreign[[2]string{spec.NetNS, spec.IfName}] {
		return nil, false, fmt.Errorf("%s: %w", spec.IfName, dataplane.ErrInterfaceExists)
	}
	spec.IPs = slices.Clone(spec.IPs)
	return &endpoint{spec: spec, parts: make(map[string]bool)}, true, nil
}

func (f *Fake) checkSpec(spec dataplane.EndpointSpec) error {
	switch {
	case spec.ContainerID == "" || spec.IfName == "" || spec.NetNS == "":
		return errors.New("container id, interface name and network namespace are needed")
	case spec.ID != model.MakeEndpointID(spec.ContainerID, spec.IfName):
		return fmt.Errorf("identity does not fit container %s and interface %s", spec.ContainerID, spec.IfName)
	case spec.Pod.Namespace == "" || spec.Pod.Name == "":
		return errors.New("pod has no name")
	case len(spec.IPs) == 0 || len(spec.IPs) > 2 || len(spec.IPs) == 2 && spec.IPs[0].Is4() == spec.IPs[1].Is4():
		return fmt.Errorf("addresses %v: want one or two, of different families", spec.IPs)
	case !spec.DNS.IsZero() && !f.features.DNS:
		return fmt.Errorf("resolvers cannot be configured on %s", f.features.OS)
	case spec.Bandwidth != (model.Bandwidth{}) && !f.features.Bandwidth && (!f.features.EgressBandwidth || spec.Bandwidth.Ingress != (model.Limit{})):
		return fmt.Errorf("bandwidth cannot be limited on %s", f.features.OS)
	}
	for _, a := range spec.IPs {
		if !a.IsValid() || a.Is4In6() || a.Is6() && !f.features.IPv6 {
			return fmt.Errorf("address %s cannot be used on %s", a, f.features.OS)
		}
	}
	return nil
}

// attachment derives an attachment from the spec alone, so that it is the same every time.
func attachment(spec dataplane.EndpointSpec) dataplane.Attachment {
	h := fnv.New32a()
	h.Write([]byte(spec.ID))
	sum := h.Sum32()
	a := dataplane.Attachment{
		HostIfName: fmt.Sprintf("ith%08x", sum),
		HostMAC:    net.HardwareAddr{0x02, 0x00, byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)},
		MAC:        net.HardwareAddr{0x06, 0x00, byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)},
		MTU:        1450,
	}
	for _, ip := range spec.IPs {
		gateway := netip.MustParseAddr("169.254.1.1")
		if ip.Is6() {
			gateway = netip.MustParseAddr("fe80::1")
		}
		a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, ip.BitLen()))
		a.Gateways = append(a.Gateways, gateway)
	}
	return a
}

// DeleteEndpoint implements Backend.
func (f *Fake) DeleteEndpoint(ctx context.Context, id model.EndpointID) error {
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	for _, part := range slices.Backward(allParts[:]) {
		if err := f.step(ctx, "delete."+part); err != nil {
			return fmt.Errorf("delete endpoint %s: %w", id, err)
		}
		f.mu.Lock()
		if e := f.attached[id]; e != nil {
			delete(e.parts, part)
		}
		f.mu.Unlock()
	}
	f.mu.Lock()
	delete(f.attached, id)
	if f.inForce != nil {
		s := *f.inForce
		s.Policy.Endpoints = maps.Clone(s.Policy.Endpoints)
		delete(s.Policy.Endpoints, id)
		f.inForce = &s
	}
	f.mu.Unlock()
	f.done("delete", string(id))
	return nil
}

// Endpoints implements Backend.
func (f *Fake) Endpoints(ctx context.Context) ([]dataplane.Installed, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := f.step(ctx, "endpoints"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []dataplane.Installed
	for id, e := range f.attached {
		i := dataplane.Installed{ID: id, Unenforced: e.unenforced(), InPod: slices.Clone(e.inPod)}
		for _, part := range e.missing() {
			i.Problems = append(i.Problems, part+" is missing")
		}
		if v, counted := f.verdicts[id]; counted {
			i.Verdicts = &v
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b dataplane.Installed) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}
