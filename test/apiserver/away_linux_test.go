// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// lair is a database that one pod may reach, and a pod that may not.
const lair = `
{apiVersion: v1, kind: Namespace, metadata: {name: lair, labels: {team: a}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: other, labels: {team: a}}}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: lair, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: c, image: none}]}
status: {phase: Running, podIP: 10.244.1.3, podIPs: [{ip: 10.244.1.3}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: other, labels: {app: stranger}}
spec: {nodeName: n1, containers: [{name: c, image: none}]}
status: {phase: Running, podIP: 10.244.1.8, podIPs: [{ip: 10.244.1.8}]}
`

const lairClient = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: lair, labels: {app: client}}
spec: {nodeName: n1, containers: [{name: c, image: none}]}
status: {phase: Running, podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}]}
`

// Another pod gets the address of the client.
const lairThief = `
apiVersion: v1
kind: Pod
metadata: {name: thief, namespace: lair, labels: {app: thief}}
spec: {nodeName: n1, containers: [{name: c, image: none}]}
status: {phase: Running, podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}]}
`

const lairPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: lair}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}
`

// A namespace loses the label that the new policy allows. The new policy with the old label would allow the
// stranger.
const lairAfter = `
{apiVersion: v1, kind: Namespace, metadata: {name: other, labels: {team: b}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: lair}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
    - from: [{podSelector: {matchLabels: {app: client}}}]
    - from: [{namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: stranger}}}]
`

// TestAwayAndBack stops the API server, or kills it and starts it again on the same data. The last known state
// stays in force, and the source reports that it is behind. The changes of that time arrive without a moment that
// allows more than the state before and the state after.
func TestAwayAndBack(t *testing.T) {
	s := running(t)
	ctx := context.Background()
	for name, outage := range map[string]struct{ begin, end func() error }{
		"halted": {s.Halt, s.Continue},
		"killed": {s.KillAPI, func() error { return s.StartAPI(ctx) }},
	} {
		t.Run(name, func(t *testing.T) {
			apply(t, s, lair+"---"+lairClient+"---"+lairPolicy)
			f := read(t, account(t, s, "patient", "isthmus-agent"), nil)
			f.until("the policy", func(s *model.Snapshot) bool { return s.Policies.Len() == 1 })
			f.noProblems()
			before := len(f.all())
			if err := s.OpenSide(ctx); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := s.CloseSide(); err != nil {
					t.Error(err)
				}
			})
			must(t, outage.begin())
			f.problem("API server", "Pod", "the last known state stays in force")
			if f.source.Behind() == "" {
				t.Error("the source does not report that it is behind")
			}
			if n := len(f.all()); n != before {
				t.Errorf("%d snapshots published while the API server was away", n-before)
			}
			must(t, s.Delete(ctx, lairClient))
			must(t, s.Apply(ctx, lairThief+"---"+lairAfter))
			t.Cleanup(func() {
				if err := s.Delete(ctx, lairThief); err != nil {
					t.Error(err)
				}
			})
			must(t, outage.end())
			f.until("the changes of that time", changedMeanwhile)
			for _, s := range f.all()[before:] {
				checkDatabase(t, s)
			}
			f.noProblems()
			if why := f.source.Behind(); why != "" {
				t.Errorf("still behind: %s", why)
			}
		})
	}
}

// changedMeanwhile reports whether a snapshot has all changes that TestAwayAndBack makes without the API server.
func changedMeanwhile(s *model.Snapshot) bool {
	_, client := s.Pods.Get(model.PodID{Namespace: "lair", Name: "client"})
	_, thief := s.Pods.Get(model.PodID{Namespace: "lair", Name: "thief"})
	p, _ := s.Policies.Get(model.Origin{Kind: "NetworkPolicy", Namespace: "lair", Name: "db"})
	team, _ := s.Namespace("other").Labels.Get("team")
	return !client && thief && p != nil && len(p.Rules[model.Ingress]) == 2 && team == "b"
}

// checkDatabase checks that a snapshot denies the stranger, and the thief once it has the address of the client.
func checkDatabase(t *testing.T, s *model.Snapshot) {
	t.Helper()
	e := policy.NewEvaluator(s)
	for _, from := range []string{"10.244.1.8", "10.244.1.2"} {
		if _, exists := s.Pods.Get(model.PodID{Namespace: "lair", Name: "client"}); exists && from == "10.244.1.2" {
			continue // the client still has the address
		}
		_, in := e.Flow(model.Flow{Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr("10.244.1.3"), Protocol: model.TCP, Port: 5432})
		if in.Verdict != model.Deny {
			t.Errorf("%s is allowed: %s", from, in.Cause)
		}
	}
}
