// SPDX-License-Identifier: Apache-2.0

package path

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

func (r *Runner) attach(p *PodStep) error {
	device := deviceOf(p.Name)
	r.dirty = true
	if was := r.node.Pods[device]; was != nil {
		was.Policy = p.Policy
		return nil
	}
	addrs := podAddrs(p.Address)
	if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return r.node.Party(a) != "" }) {
		return nil // taken
	}
	w, err := r.layout.AddSlot(endpointID(p.Name))
	if err != nil {
		return err
	}
	if err := r.path.WriteSlot(w); err != nil {
		return err
	}
	e := bpfobj.PodEndpoint{Slot: w.Index, Ip4: addrs[0].As4(), Ip6: addrs[1].As16(), Mac: macOf(p.Name), HostMac: hostMAC}
	put := r.path.PutEndpoint
	if p.Limited {
		put = r.path.PutQueuedEndpoint
	}
	r.node.Pods[device] = &reference.Pod{Name: p.Name, Addrs: addrs, MAC: macOf(p.Name), Device: device, Slot: int(w.Index), Limited: p.Limited, Policy: p.Policy}
	return put(device, e)
}

func (r *Runner) detach(name string) error {
	if err := r.path.DropEndpoint(deviceOf(name)); err != nil {
		return err
	}
	w, ok := r.layout.DropSlot(endpointID(name))
	if !ok {
		return nil
	}
	return r.path.WriteSlot(w)
}

func (r *Runner) apply() error {
	if !r.dirty {
		return nil
	}
	r.dirty = false
	for _, step := range dataplane.Plan(r.layout.State(), r.layouts.state(r.node.Pods)) {
		r.clock = r.clock.Add(2 * policymap.Grace) // no packet is in flight
		w, err := r.layout.Advance(step, r.clock)
		if err != nil {
			return err
		}
		if err := r.path.Execute(w); err != nil {
			return err
		}
	}
	for _, pod := range r.node.Pods {
		epoch, digest := int(r.layout.Slots[uint32(pod.Slot)].Epoch), r.digest(pod)
		if was, known := r.digests[pod.Name]; known && was != digest && epoch == pod.Epoch {
			return &Failure{r.at, "epoch", fmt.Sprintf("the policy of pod %s changed and its epoch did not", pod.Name)}
		}
		pod.Epoch, r.digests[pod.Name] = epoch, digest
	}
	return nil
}

func (r *Runner) digest(pod *reference.Pod) string {
	var b []byte
	for _, dir := range []reference.Direction{reference.Ingress, reference.Egress} {
		for _, all := range everyone {
			for _, a := range all[:1] {
				party := r.node.Party(a)
				bits := byte(0)
				for i, proto := range []uint8{reference.TCP, reference.UDP, reference.SCTP, 0} {
					if pod.Policy.Allows(dir, party, proto, 1) {
						bits |= 1 << i
					}
				}
				b = append(b, bits)
				for _, proto := range []uint8{reference.TCP, reference.UDP, reference.SCTP} {
					bits := byte(0)
					for i, port := range ports {
						if pod.Policy.Allows(dir, party, proto, port) {
							bits |= 1 << i
						}
					}
					b = append(b, bits)
				}
			}
		}
	}
	return string(b)
}

func (r *Runner) restart() error {
	if err := errors.Join(r.path.Reload(), r.surroundings()); err != nil {
		return err
	}
	entries, err := r.path.Read()
	if err != nil {
		return err
	}
	held := make(map[model.EndpointID]uint32)
	for slot, id := range r.layout.Holders() {
		held[id] = slot
	}
	decoded, problems := policymap.Decode(entries, held, r.path.Capacity())
	if len(problems) > 0 {
		return fmt.Errorf("decode the maps: %v", problems)
	}
	r.layout, r.dirty = decoded, true
	r.replay, err = r.path.Replay()
	return err
}
