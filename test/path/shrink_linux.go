// SPDX-License-Identifier: Apache-2.0

package path

import (
	"slices"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// Shrink reduces a failing sequence to the steps, rules and fields of packets that it needs to fail. It does not
// change steps, and calls fails often.
func Shrink(steps []Step, fails func([]Step) bool) []Step {
	for before := -1; before != len(Text(steps)); {
		before = len(Text(steps))
		for size := len(steps) / 2; size > 0; size /= 2 {
			for at := len(steps) - size; at >= 0; at -= size {
				if less := slices.Delete(slices.Clone(steps), at, at+size); fails(less) {
					steps = less
					at = min(at, len(steps))
				}
			}
		}
		for i := range steps {
			for _, simpler := range simplify(steps[i]) {
				less := slices.Clone(steps)
				less[i] = simpler
				if len(Text(less)) < len(Text(steps)) && fails(less) {
					steps = less
				}
			}
		}
	}
	return steps
}

// simplify returns smaller variants of a step.
func simplify(s Step) (all []Step) {
	if s.Pod != nil {
		for i := range s.Pod.Policy.Rules {
			p := *s.Pod
			p.Policy.Rules = slices.Delete(slices.Clone(p.Policy.Rules), i, i+1)
			all = append(all, Step{Pod: &p})
		}
		p := *s.Pod
		p.Limited = false
		return append(all, Step{Pod: &p})
	}
	if s.Packet == nil {
		return nil
	}
	for _, change := range []func(*Step, *reference.Packet){
		func(s *Step, _ *reference.Packet) { s.Mark = "" },
		func(s *Step, _ *reference.Packet) { s.Fresh = false },
		func(s *Step, _ *reference.Packet) { s.IPVS = false },
		func(s *Step, _ *reference.Packet) { s.Defragment = false },
		func(s *Step, _ *reference.Packet) { s.Masquerade, s.Gateway = 0, false },
		func(s *Step, _ *reference.Packet) { s.Gateway = false },
		func(s *Step, _ *reference.Packet) { s.Copied, s.Raised = false, false },
		func(_ *Step, p *reference.Packet) { p.Size = 0 },
		func(_ *Step, p *reference.Packet) { p.Hops = 0 },
		func(_ *Step, p *reference.Packet) { p.Options, p.SourceRoute = 0, 0 },
		func(_ *Step, p *reference.Packet) { p.Extensions, p.Behind = nil, 0 },
		func(_ *Step, p *reference.Packet) { p.Cut, p.Claims = 0, 0 },
		func(_ *Step, p *reference.Packet) { p.Fragment, p.ID, p.Behind = 0, 0, 0 },
		func(_ *Step, p *reference.Packet) { p.Seq, p.Ack = 0, 0 },
		func(_ *Step, p *reference.Packet) { p.ForeignMAC = false },
	} {
		next, p := s, *s.Packet
		next.Packet = &p
		change(&next, &p)
		all = append(all, next)
	}
	return all
}
