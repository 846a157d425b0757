// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

var (
	podMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	hostMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

// Programs are the real programs with the maps of a State.
type Programs struct {
	path   *loader.DataPath
	layout *policymap.Layout
	state  *model.State
	source uint16
}

// Load loads the programs into the kernel. It needs root.
func Load() (*Programs, error) {
	path, err := loader.OpenSandbox()
	if err != nil {
		return nil, err
	}
	return &Programs{path: path, layout: policymap.NewLayout(path.Capacity()), source: 1024}, nil
}

// Close unloads them.
func (p *Programs) Close() error { return p.path.Close() }

// Apply lays out a State by the same steps as on a node. Endpoints that are not in the State
// lose their slots.
func (p *Programs) Apply(s *model.State) error {
	for id := range p.layout.State().Policy.Endpoints {
		if _, stays := s.Policy.Endpoints[id]; !stays {
			if w, ok := p.layout.DropSlot(id); ok {
				if err := p.path.WriteSlot(w); err != nil {
					return err
				}
			}
		}
	}
	for id := range s.Policy.Endpoints {
		w, err := p.layout.AddSlot(id)
		if err != nil {
			return err
		}
		if err := p.path.WriteSlot(w); err != nil {
			return err
		}
	}
	for _, step := range dataplane.Plan(p.layout.State(), s) {
		w, err := p.layout.Advance(step, time.Now())
		if err != nil {
			return err
		}
		if err := p.path.Execute(w); err != nil {
			return err
		}
	}
	p.state = s
	return nil
}

// Entries reads the maps back.
func (p *Programs) Entries() (*policymap.Entries, error) { return p.path.Read() }

// Slot returns the slot of an endpoint.
func (p *Programs) Slot(id model.EndpointID) (uint32, bool) { return p.layout.Slot(id) }

// Decide runs the first packet of a flow through the endpoint's program. An impossible flow,
// for example between IP versions, is an error.
func (p *Programs) Decide(id model.EndpointID, d model.Direction, remote netip.Addr, proto model.Protocol, port uint16) (model.Verdict, error) {
	slot, ok := p.layout.Slot(id)
	if !ok {
		return model.Deny, fmt.Errorf("endpoint %s has no slot", id)
	}
	e := bpfobj.PodEndpoint{Slot: slot}
	copy(e.Mac[:], podMAC)
	var own netip.Addr
	for _, ip := range p.state.Policy.Endpoints[id].IPs {
		if ip.Is6() {
			e.Ip6 = ip.As16()
		} else {
			e.Ip4 = ip.As4()
		}
		if ip.Is6() == remote.Is6() {
			own = ip
		}
	}
	f := model.Flow{Src: own, Dst: remote, Protocol: proto, Port: port}
	src, dst := podMAC, hostMAC
	if d == model.Ingress {
		f.Src, f.Dst, src, dst = remote, own, hostMAC, podMAC
	}
	if !own.IsValid() || !family(f, remote) {
		return model.Deny, fmt.Errorf("no flow %s %s of endpoint %s can exist", d, f, id)
	}
	p.source++
	if p.source < 1024 {
		p.source = 1024
	}
	passed, err := p.path.Run(e, d, First(f, p.source, src, dst))
	if err != nil || !passed {
		return model.Deny, err
	}
	return model.Allow, nil
}

// family reports whether a flow is possible: both ends have the same IP version, and ICMP
// matches it.
func family(f model.Flow, a netip.Addr) bool {
	return f.Src.Is6() == f.Dst.Is6() && f.Src.Is6() == a.Is6() &&
		(f.Protocol != model.ICMP || f.Src.Is4()) && (f.Protocol != model.ICMPv6 || f.Src.Is6())
}

// Counts returns how many new flows the programs have decided by each cause since Load, by the number of the cause.
func (p *Programs) Counts() (map[uint32]uint64, error) {
	numbers := slices.Collect(maps.Keys(p.layout.Counted()))
	for n := bpfobj.CauseOther; n < bpfobj.CauseSelf; n++ {
		numbers = append(numbers, n)
	}
	return p.path.CauseCounts(numbers)
}

// Cause returns what a number of Counts stands for. The cause is nil for flows that are not counted separately.
func (p *Programs) Cause(number uint32) model.Decision {
	if d, ok := p.layout.Counted()[number]; ok {
		return d
	}
	return policymap.FixedCause(number)
}
