// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestBadPolicyKeepsItsPredecessor makes a valid policy of every kind invalid by an edit. The valid
// version stays in force, also after all objects are listed again.
func TestBadPolicyKeepsItsPredecessor(t *testing.T) {
	const anp = `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: old}
spec: {priority: 3, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
`
	const np = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guard, namespace: shop}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}, {from: [{podSelector: {}}]}]}
`
	for kind, c := range map[string]struct {
		origin       model.Origin
		good         string
		replace, bad string
	}{
		"NetworkPolicy":        {model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "guard"}, np, "10.0.0.0/8", "10.0.0.300/8"},
		"ClusterNetworkPolicy": {model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}, cnpAdmin, "169.254.169.254/32", "169.254.169.300/32"},
		"AdminNetworkPolicy":   {model.Origin{Kind: "AdminNetworkPolicy", Name: "old"}, anp, "Deny", "Drop"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // a watch counts as established after a second
			f := newFakeAPI(t)
			f.served[cnpPath], f.served[anpPath] = true, true
			f.put(t, world1+"---"+c.good)
			w := startAPI(t, f)
			was, _ := w.Until("the policy", hasPolicy(kind, c.origin.Namespace, c.origin.Name)).Policies.Get(c.origin)
			w.NoProblems()
			// A change of another object of the kind shows that the feed is up to date.
			same := func(marker, when string) {
				t.Helper()
				if is, _ := w.Until(marker, hasPolicy(kind, c.origin.Namespace, marker)).Policies.Get(c.origin); is != was {
					t.Errorf("%s: %+v is in force, want the last valid version %+v", when, is, was)
				}
			}
			mark := func(marker string) { f.put(t, strings.Replace(c.good, "name: "+c.origin.Name, "name: "+marker, 1)) }
			f.put(t, strings.Replace(c.good, c.replace, c.bad, 1))
			w.Problem(c.origin.String(), "is not valid")
			mark("edited")
			same("edited", "after the edit")
			f.set(func() { f.down = true })
			f.server.CloseClientConnections()
			w.Problem("API server", kind)
			mark("listed")
			f.set(func() { f.down = false })
			same("listed", "after a list")
			w.Problem(c.origin.String(), "is not valid")
		})
	}
}

// TestStoredActions reads an action of a newer API. Without a valid predecessor
// the rule denies everything: it may have been written to deny.
func TestStoredActions(t *testing.T) {
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	f.put(t, world1+"---"+strings.Replace(cnpAdmin, "action: Deny", "action: Quarantine", 1))
	w := startAPI(t, f)
	s := w.Until("the policy", hasPolicy("ClusterNetworkPolicy", "", "guard"))
	p, _ := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
	rules := p.Rules[model.Egress]
	if len(rules) != 1 || rules[0].Action != model.ActionDeny || !rules[0].AnyPort || len(rules[0].Peers) != 1 || rules[0].Peers[0].Kind != model.PeerUnknown {
		t.Errorf("rules %+v, want one that denies everything", rules)
	}
	w.Problem("ClusterNetworkPolicy guard", "action", "Quarantine")
}

// TestUnknownFields adds a field of a newer API to an Accept rule: it may restrict the rule, which matches nothing from then on.
// With such a field in the subject it is not known which pods the policy selects, and the last valid version stays.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	const accept = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guard}
spec: {tier: Admin, priority: 7, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {}}]}]}
`
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	f.put(t, world1+"---"+accept)
	w := startAPI(t, f)
	peer := func(kind model.PeerKind) func(*model.Snapshot) bool {
		return func(s *model.Snapshot) bool {
			p, ok := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
			return ok && len(p.Rules[model.Ingress]) == 1 && p.Rules[model.Ingress][0].Peers[0].Kind == kind
		}
	}
	w.Until("the rule", peer(model.PeerPods))
	w.NoProblems()
	f.put(t, strings.Replace(accept, "action: Accept", "action: Accept, identity: {namespaces: [a.b]}", 1))
	closed, _ := w.Until("the closed rule", peer(model.PeerUnknown)).Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
	w.Problem("ClusterNetworkPolicy guard: spec.ingress[0].identity: this version does not know the field; the rule matches nothing")
	f.put(t, strings.Replace(accept, "subject: {namespaces: {}}", "subject: {namespaces: {}, services: {}}", 1))
	w.Problem("ClusterNetworkPolicy guard: spec.subject.services", "this version does not know the field")
	w.Problem("ClusterNetworkPolicy guard: the object is not valid: its last valid version stays in force")
	f.put(t, "{apiVersion: v1, kind: Pod, metadata: {name: after, namespace: shop}}")
	if is, _ := w.Until("after", kubetest.HasPod("after")).Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}); is != closed {
		t.Errorf("guard is %+v, want the last valid version", is)
	}
}
