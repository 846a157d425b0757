// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

// Addresses with the same text from Alike get the same decision, including the cause. A
// PodEvaluator and a RemoteEvaluator decide as the Evaluator does.
func TestPodEvaluator(t *testing.T) {
	shared := 0
	for i, shape := range world.Shapes {
		for seed := range uint64(6) {
			s := world.Random(seed, shape)
			reference := policy.NewEvaluator(s)
			addrs, ports := world.Probes(s)
			for _, pod := range s.Pods.All() {
				for _, d := range model.Directions {
					one := reference.Pod(pod, d)
					found := make(map[string][]model.Decision)
					for _, a := range addrs {
						var answers []policy.Answer
						for _, r := range one.Rules() {
							answers = append(answers, reference.Answer(r, reference.Remote(a)))
						}
						key, remote := one.Alike(reference.Remote(a), answers), one.At(reference.Remote(a), answers)
						before := found[key]
						var row []model.Decision
						for n, at := range ports {
							got := one.Decide(a, at.Protocol, at.Port)
							if want := reference.Endpoint(pod, d, a, at.Protocol, at.Port); got.String() != want.String() {
								t.Fatalf("shape %d seed %d: %s %s %s: %s, want %s", i, seed, pod.PodID, d, a, got, want)
							}
							if again := remote.Decide(at.Protocol, at.Port); again.String() != got.String() {
								t.Fatalf("shape %d seed %d: %s %s %s: %s, and for one address %s", i, seed, pod.PodID, d, a, got, again)
							}
							if before != nil && before[n].String() != got.String() {
								t.Fatalf("shape %d seed %d: %s %s %s: %s, and of an address like it %s", i, seed, pod.PodID, d, a, got, before[n])
							}
							row = append(row, got)
						}
						if before != nil {
							shared++
						}
						found[key] = row
					}
				}
			}
		}
	}
	if shared < 1000 {
		t.Errorf("only %d addresses were like another: nothing was compared", shared)
	}
}
