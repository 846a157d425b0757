// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
)

const cnpDoubt = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guard}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {matchExpressions: [{key: team, operator: in, values: [x]}]}}
  ingress:
    - {action: Deny, from: [{namespaces: {}}]}
`

// TestMalformedSubject checks a policy whose subject is malformed. It denies from the start, and an
// edit that is also invalid takes effect, because no version was ever valid. Once a version was
// valid, it stays in force when the policy becomes invalid.
func TestMalformedSubject(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	f.put(t, world1+"---"+cnpDoubt)
	w := startAPI(t, f)
	guard := model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}
	get := func(s *model.Snapshot) *model.Policy {
		p, _ := s.Policies.Get(guard)
		return p
	}
	p := get(w.Until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard")))
	if r := p.Rules[model.Ingress]; !p.Subject.Namespaces.Everything() || !p.Subject.Pods.Everything() || len(r) != 1 || r[0].Action != model.ActionDeny {
		t.Errorf("guard is %+v", p)
	}
	w.Problem("ClusterNetworkPolicy guard: spec.subject.namespaces.matchExpressions[0].operator", `"in"`)
	w.Problem("ClusterNetworkPolicy guard: the object is not valid, and no valid version is known", "its Deny rules apply to every pod")

	second := "    - {action: Deny, from: [{networks: [192.0.2.0/24]}, {namespaces: {matchLabels: {team: y}}}]}\n"
	f.put(t, strings.Replace(cnpDoubt, "values: [x]", "values: [x, y]", 1)+second)
	w.Until("the second rule", func(s *model.Snapshot) bool { return len(get(s).Rules[model.Ingress]) == 2 })
	w.Problem("ClusterNetworkPolicy guard", "no valid version is known")

	valid := strings.Replace(cnpDoubt, "operator: in", "operator: In", 1)
	f.put(t, valid)
	p = get(w.Until("the valid version", func(s *model.Snapshot) bool { return !get(s).Subject.Namespaces.Everything() }))
	w.NoProblems()
	f.put(t, cnpDoubt+second)
	w.Problem("ClusterNetworkPolicy guard: the object is not valid: its last valid version stays in force")
	f.put(t, "{apiVersion: v1, kind: Pod, metadata: {name: after, namespace: shop}}")
	if is := get(w.Until("after", kubetest.HasPod("after"))); is != p {
		t.Errorf("guard is %+v, want the last valid version", is)
	}

	// Deleted and created again: the valid version no longer exists.
	f.remove(t, cnpDoubt)
	w.Until("guard is gone", func(s *model.Snapshot) bool { return get(s) == nil })
	f.put(t, cnpDoubt)
	w.Until("guard is back", func(s *model.Snapshot) bool { return get(s) != nil && get(s).Subject.Namespaces.Everything() })
	w.Problem("ClusterNetworkPolicy guard", "no valid version is known")
}

// TestUnreadableStored reads objects with parts that have other types than this version expects.
// The readable parts are enforced, and the others fail closed.
func TestUnreadableStored(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.served[cnpPath], f.served[denyPath] = true, true
	f.put(t, world1+"---"+strings.Replace(cnpAdmin, "to: [{networks: [169.254.169.254/32]}]", "to: everyone", 1)+`
---
apiVersion: isthmus.dev/v1alpha1
kind: DenyList
metadata: {name: scanners}
spec: {entries: [192.0.2.7, 17]}
`)
	w := startAPI(t, f)
	s := w.Until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))
	p, _ := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
	if r := p.Rules[model.Egress]; len(r) != 1 || r[0].Action != model.ActionDeny || !r[0].AnyPort || r[0].Peers[0].Kind != model.PeerUnknown {
		t.Errorf("guard is %+v", p)
	}
	w.Problem("ClusterNetworkPolicy guard", "its rules are enforced as written, but egress rule 0 denies everything")
	if l, ok := s.DenyLists.Get("scanners"); !ok || len(l.Entries) != 1 {
		t.Errorf("scanners are %+v", l)
	}
	w.Problem("DenyList scanners", "1 of its entries are valid and enforced")
}

// An object that was deleted while the agent did not watch has no say about a new one of its name that is not valid.
func TestRecreatedBadPolicy(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	first := strings.NewReplacer("operator: in", "operator: In", "name: guard", "name: guard, uid: first").Replace(cnpDoubt)
	f.put(t, world1+"---"+first)
	w := startAPI(t, f)
	guard := model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}
	everything := func(s *model.Snapshot) bool {
		p, ok := s.Policies.Get(guard)
		return ok && p.Subject.Namespaces.Everything()
	}
	w.Until("the valid version", hasPolicy("ClusterNetworkPolicy", "", "guard"))
	w.NoProblems()
	f.set(func() { f.down = true })
	f.server.CloseClientConnections()
	w.Problem("API server", "ClusterNetworkPolicy")
	f.put(t, strings.Replace(cnpDoubt, "name: guard", "name: guard, uid: second", 1))
	f.set(func() { f.down = false })
	w.Until("the new object", everything)
	w.Problem("ClusterNetworkPolicy guard: the object is not valid, and no valid version is known")
	f.put(t, strings.Replace(first, "uid: first", "uid: third", 1))
	w.Until("another valid object", func(s *model.Snapshot) bool { return !everything(s) })
	f.put(t, strings.Replace(cnpDoubt, "name: guard", "name: guard, uid: third", 1))
	w.Problem("ClusterNetworkPolicy guard: the object is not valid: its last valid version stays in force")
}
