// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// Mutate returns the snapshot after n random changes of the kinds that happen in
// clusters. Policies are created, edited in one field or in all rules, and deleted.
// Pods are created, deleted, relabelled, finished, and replaced at the same address.
// Namespaces are relabelled, and port names get other meanings.
func Mutate(seed uint64, s *model.Snapshot, shape Shape, n int) *model.Snapshot {
	g := &generator{rand.New(rand.NewPCG(seed, 2)), shape}
	c := *s
	for i := range n {
		g.change(&c, i)
	}
	return &c
}

func (g *generator) change(s *model.Snapshot, i int) {
	pod := anyOf(g, s.Pods)
	policy := anyOf(g, s.Policies)
	switch g.IntN(9) {
	case 0: // create
		p := g.policy(100 + i)
		s.Policies = s.Policies.With(p.Origin.Key(), p)
	case 1: // delete
		if policy != nil {
			s.Policies = s.Policies.Without(policy.Origin.Key())
		}
	case 2: // edit one field
		if policy != nil {
			s.Policies = s.Policies.With(policy.Origin.Key(), pick(g, Edits(policy)).Policy)
		}
	case 3: // edit all rules
		if policy != nil {
			edited := g.policy(0)
			edited.Origin, edited.Tier, edited.Priority, edited.Subject = policy.Origin, policy.Tier, policy.Priority, policy.Subject
			if edited.Tier == model.TierNetworkPolicy {
				edited.Isolates = [2]bool{g.chance(60), g.chance(60)}
				for _, d := range model.Directions {
					for j := range edited.Rules[d] {
						edited.Rules[d][j] = g.rule(j, edited.Tier)
					}
				}
			} else {
				edited.Isolates = [2]bool{}
			}
			s.Policies = s.Policies.With(policy.Origin.Key(), edited)
		}
	case 4: // a new pod, perhaps at an address that another had
		p := g.pod(g.IntN(20))
		p.Name = fmt.Sprintf("q%d", i)
		p.Created = 10
		s.Pods = s.Pods.With(p.PodID, p)
	case 5:
		if pod != nil {
			s.Pods = s.Pods.Without(pod.PodID)
		}
	case 6:
		if pod != nil {
			p := *pod
			p.Labels = model.MakeLabels(g.labels())
			p.Finished = g.chance(10)
			s.Pods = s.Pods.With(p.PodID, &p)
		}
	case 7:
		if pod != nil {
			p := *pod
			p.Ports = g.pod(0).Ports
			p.IPs = append([]netip.Addr(nil), pod.IPs...)
			s.Pods = s.Pods.With(p.PodID, &p)
		}
	case 8:
		ns := pick(g, []string{"x", "y", "z"})
		s.Namespaces = s.Namespaces.With(ns, model.NewNamespace(ns, g.labels()))
	}
}

// anyOf picks an element; the seed determines which.
func anyOf[K comparable, V interface{ comparable }](g *generator, m immutable.Map[K, V]) V {
	var zero V
	if m.Len() == 0 {
		return zero
	}
	var best V
	first, bestRank := true, ""
	salt := g.IntN(1 << 30)
	for k, v := range m.All() {
		r := rand.New(rand.NewPCG(uint64(salt), hash(fmt.Sprint(k))))
		if rank := fmt.Sprintf("%016x", r.Uint64()); first || rank < bestRank {
			best, bestRank, first = v, rank, false
		}
	}
	return best
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}
