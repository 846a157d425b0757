// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bandwidth"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// AddEndpoint implements dataplane.Backend. It attaches the programs to the host end of the
// veth pair before either end is up.
func (b *Backend) AddEndpoint(ctx context.Context, spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	if b.layout == nil {
		if err := b.readBack(); err != nil {
			return dataplane.Attachment{}, err
		}
	}
	if b.cfg.PolicyOnly {
		return b.addForeign(spec)
	}
	if spec.Migrated {
		return b.addMigrated(spec)
	}
	b.pods[spec.ID] = spec.Pod
	s := link.PairSpec{ID: spec.ID, NetNS: spec.NetNS, NetNSID: spec.NetNSID, IfName: spec.IfName, IPs: spec.IPs,
		MTU: b.mtu, Bandwidth: spec.Bandwidth, Sources: b.sources}
	b.step("create pair")
	pair, made, err := link.CreatePair(s)
	if err == nil {
		err = b.attach(s, pair)
	}
	if err != nil {
		if made {
			err = errors.Join(err, b.DeleteEndpoint(ctx, spec.ID))
		}
		if _, known := b.specs[spec.ID]; !known {
			delete(b.pods, spec.ID)
		}
		return dataplane.Attachment{}, err
	}
	b.specs[spec.ID] = s
	b.components.EndpointAdded(spec)
	a := dataplane.Attachment{HostIfName: pair.Name, NetNSID: pair.NetNSID, HostMAC: pair.HostMAC, MAC: pair.PodMAC, MTU: s.MTU}
	for _, ip := range s.IPs {
		a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, ip.BitLen()))
		a.Gateways = append(a.Gateways, link.GatewayFor(ip))
	}
	return a, nil
}

func (b *Backend) attach(s link.PairSpec, pair link.Pair) error {
	slot, err := b.addSlot(s.ID, b.layout.AddSlot)
	if err != nil {
		return err
	}
	b.step("write slot")
	if err := b.path.WriteSlot(slot); err != nil {
		return err
	}
	e := bpfobj.PodEndpoint{Slot: slot.Index}
	copy(e.Mac[:], pair.PodMAC)
	copy(e.HostMac[:], pair.HostMAC)
	for _, ip := range s.IPs {
		if ip.Is6() {
			e.Ip6 = ip.As16()
		} else {
			e.Ip4 = ip.As4()
		}
	}
	b.step("register endpoint")
	// A migrated pod stays in the host stack, so that the migration can be reversed: the programs of mode
	// policy know no other path.
	queued := s.Bandwidth != (model.Bandwidth{}) || s.Taken != nil
	if b.underOlder(pair.Index) {
		b.upgrade.waiting[pair.Index], b.upgrade.queued[pair.Index] = e, queued
	} else if err := b.register(pair.Index, e, queued); err != nil {
		return err
	}
	b.step("attach programs")
	if err := b.classify(pair.Name, pair.Index); err != nil {
		return err
	}
	b.step("limit bandwidth")
	if err := bandwidth.Set(s, pair); err != nil {
		return err
	}
	b.step("configure pair")
	return link.Configure(s, pair)
}

// addSlot assigns a slot to an endpoint, unless it has one. The verdicts that a new slot counts are
// then those of this pod.
func (b *Backend) addSlot(id model.EndpointID, add func(model.EndpointID) (policymap.SlotWrite, error)) (policymap.SlotWrite, error) {
	_, had := b.layout.Slot(id)
	slot, err := add(id)
	if err != nil {
		return slot, err
	}
	b.recordVersion()
	if !had {
		err = b.path.ResetVerdictCounts(slot.Index)
	}
	return slot, err
}

// register writes the endpoint of an interface to the maps. queued is true if its packets must pass
// the host stack.
func (b *Backend) register(index int, e bpfobj.PodEndpoint, queued bool) error {
	if queued {
		return b.path.PutQueuedEndpoint(index, e)
	}
	return b.path.PutEndpoint(index, e)
}
