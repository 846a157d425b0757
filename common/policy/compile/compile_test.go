// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// answers decides for a list of addresses by a State. It looks up their classes once.
type answers struct {
	*model.State
	addrs   []netip.Addr
	classes []model.PeerClass
}

func newAnswers(s *model.State, addrs []netip.Addr) *answers {
	a := &answers{State: s, addrs: addrs}
	for _, addr := range addrs {
		a.classes = append(a.classes, s.Policy.Class(addr))
	}
	return a
}

// decide returns State.Decide for addrs[i].
func (a *answers) decide(id model.EndpointID, d model.Direction, i int, p model.Protocol, port uint16) model.Decision {
	e := a.Policy.Endpoints[id]
	t := a.Policy.Tables[e.Table]
	if t == nil || slices.Contains(e.IPs, a.addrs[i]) {
		return a.State.Policy.Decide(id, d, a.addrs[i], p, port)
	}
	return t.Sides[d].Row(a.classes[i]).Cell(a.Policy.PortClass(p, port))
}

// remoteOf prepares the reference to decide many ports of a remote address. TestPodEvaluator
// in package policy compares it with Evaluator.Endpoint.
func remoteOf(reference *policy.Evaluator, pod *policy.PodEvaluator, a netip.Addr) *policy.RemoteEvaluator {
	remote := reference.Remote(a)
	var answers []policy.Answer
	for _, r := range pod.Rules() {
		answers = append(answers, reference.Answer(r, remote))
	}
	return pod.At(remote, answers)
}

// compare compares the reference with the compiled State for every flow that could
// distinguish them.
func compare(t *testing.T, s *model.Snapshot, node string, state *model.State) (cells int) {
	t.Helper()
	reference := policy.NewEvaluator(s)
	addrs, ports := world.Probes(s)
	answers := newAnswers(state, addrs)
	for _, p := range s.Pods.All() {
		if p.Node != node || !p.Policed() {
			continue
		}
		for _, d := range model.Directions {
			pod := reference.Pod(p, d)
			for i, a := range addrs {
				remote := remoteOf(reference, pod, a)
				for _, at := range ports {
					want := remote.Decide(at.Protocol, at.Port)
					got := answers.decide(world.EndpointID(p), d, i, at.Protocol, at.Port)
					cells++
					if want.Verdict != got.Verdict || want.Cause.Reason != got.Cause.Reason {
						t.Fatalf("%s %s %s %s/%d: reference %s, table %s", p.PodID, d, a, at.Protocol, at.Port, want, got)
					}
				}
			}
		}
	}
	return cells
}

func TestCompileEqualsEvaluate(t *testing.T) {
	cells, seeds := 0, uint64(60)
	if testing.Short() {
		seeds = 20
	}
	for i, shape := range world.Shapes {
		for seed := range seeds {
			s := world.Random(seed, shape)
			for _, node := range []string{"node1", "node2"} {
				t.Run(fmt.Sprintf("shape%d/%d/%s", i, seed, node), func(t *testing.T) {
					state, unsupported := compile.Once(compile.Input{Snapshot: s, Node: node, Endpoints: world.Endpoints(s, node)})
					if len(unsupported) > 0 {
						t.Fatal(unsupported)
					}
					cells += compare(t, s, node, state)
				})
			}
		}
	}
	t.Logf("cells=%d", cells)
}
