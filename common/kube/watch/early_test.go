// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

const earlyWorld = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.244.1.0/24, "fd00:1::/64"]},
 status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {nodeName: n1},
 status: {phase: Running, podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}, {ip: "fd00:1::2"}]}}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guard}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {}}
  ingress:
    - {name: red, action: Deny, from: [{namespaces: {matchLabels: {color: red}}}]}
`

const earlyPod = `
{apiVersion: v1, kind: Pod, metadata: {name: early, namespace: red, uid: u9}, spec: {nodeName: n1},
 status: {phase: Running, podIP: 10.244.1.9, podIPs: [{ip: 10.244.1.9}, {ip: "fd00:1::9"}]}}
`

func hasEarly(s *model.Snapshot) bool {
	_, ok := s.Pods.Get(model.PodID{Namespace: "red", Name: "early"})
	return ok
}

// marker is a pod whose arrival shows that the feed of pods has delivered what came before.
func marker(name string) string {
	return `{apiVersion: v1, kind: Pod, metadata: {name: ` + name + `, namespace: shop}, spec: {nodeName: n1}}`
}

// verdict returns what pod shop/web of a snapshot does with new connections of the early pod: the reference evaluator and the
// compiled State must agree, for both families.
func verdict(t *testing.T, s *model.Snapshot) model.Verdict {
	t.Helper()
	web, _ := s.Pods.Get(model.PodID{Namespace: "shop", Name: "web"})
	state, _ := compile.Once(compile.Input{Snapshot: s, Node: "n1", Endpoints: map[model.EndpointID]compile.Endpoint{"web:eth0": {Pod: web.PodID, IPs: web.IPs}}})
	table := state.Policy.Tables[state.Policy.Endpoints["web:eth0"].Table]
	found := make(map[model.Verdict]bool)
	var last model.Verdict
	for _, text := range []string{"10.244.1.9", "fd00:1::9"} {
		from := netip.MustParseAddr(text)
		want := policy.NewEvaluator(s).Endpoint(web, model.Ingress, from, model.TCP, 80).Verdict
		last = model.Allow
		if row := table.Sides[model.Ingress].Row(state.Policy.Class(from)); row != nil {
			last = row.Cell(state.Policy.PortClass(model.TCP, 80)).Verdict
		}
		if last != want {
			t.Errorf("%s: the State has %s, the evaluator %s", from, last, want)
		}
		found[last] = true
	}
	if len(found) > 1 {
		t.Error("the families differ")
	}
	return last
}

// TestPodBeforeItsNamespace: watches of different kinds have no common order, so a pod may arrive before its namespace, whose labels
// decide. The pod is unknown until then: it is not attached, and what a rule might deny is denied.
func TestPodBeforeItsNamespace(t *testing.T) {
	for _, color := range []string{"red", "blue"} {
		t.Run(color, func(t *testing.T) {
			f := newFakeAPI(t)
			f.served[cnpPath] = true
			f.put(t, earlyWorld)
			w := startAPI(t, f)
			w.Until("web", kubetest.HasPod("web"))
			f.put(t, earlyPod+"---"+marker("mark"))
			s := w.Until("mark", kubetest.HasPod("mark"))
			if hasEarly(s) {
				t.Error("a pod is known, so it may be attached, although the labels of its namespace are not")
			}
			if v := verdict(t, s); v != model.Deny {
				t.Errorf("packets of a pod with an unknown namespace: %s", v)
			}
			w.Problem("Namespace red", "is not known")

			f.put(t, `{apiVersion: v1, kind: Namespace, metadata: {name: red, labels: {color: `+color+`}}}`)
			want := model.Allow
			if color == "red" {
				want = model.Deny
			}
			if v := verdict(t, w.Until("early", hasEarly)); v != want {
				t.Errorf("packets of a pod in a %s namespace: %s, want %s", color, v, want)
			}
			w.NoProblems()
		})
	}
}

// TestNamespaceBeforeItsPods: the end of a namespace may arrive before that of its pods. Without its labels they are unknown again.
func TestNamespaceBeforeItsPods(t *testing.T) {
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	namespace := `{apiVersion: v1, kind: Namespace, metadata: {name: red, labels: {color: red}}}`
	f.put(t, earlyWorld+"---\n"+namespace+"\n---"+earlyPod)
	w := startAPI(t, f)
	w.Until("early", hasEarly)
	f.remove(t, namespace)
	s := w.Until("no early", func(s *model.Snapshot) bool { return !hasEarly(s) })
	if v := verdict(t, s); v != model.Deny {
		t.Errorf("packets of a pod whose namespace is gone: %s", v)
	}
	w.Problem("Namespace red", "is not known")
	f.put(t, namespace)
	w.Until("early again", hasEarly)
	w.NoProblems()
	f.remove(t, namespace)
	f.remove(t, earlyPod)
	f.put(t, marker("mark"))
	w.Until("mark", kubetest.HasPod("mark"))
	w.NoProblems()
}

// TestPodBehindPolicies takes from the agent the right to read one kind of policies. A pod that is created then may be one that a later
// policy isolates or denies. It is unknown, and so not attached, until that kind can be read again; known pods go on.
func TestPodBehindPolicies(t *testing.T) {
	for name, streams := range map[string]bool{"streamed": true, "listed": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); podBehindPolicies(t, streams) })
	}
}

func podBehindPolicies(t *testing.T, streams bool) {
	f := newFakeAPI(t)
	f.served[cnpPath], f.streams = true, streams
	f.put(t, earlyWorld+"---"+marker("known")+"\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: red}}")
	cfg := testAPIConfig(f.kubeconfig(t))
	cfg.CatchUp = 100 * time.Millisecond
	a, err := NewAPIServer(cfg, kubetest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	w := kubetest.Follow(t, a)
	w.Until("known", kubetest.HasPod("known"))
	f.set(func() { f.forbidden = policiesPath })
	f.server.CloseClientConnections()
	w.Problem("NetworkPolicy", "not for you")

	const isolating = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: isolated, namespace: red}, spec: {podSelector: {}}}"
	f.put(t, isolating+"\n---"+earlyPod+"---\n"+strings.Replace(marker("known"), "name: known", "name: known, labels: {color: blue}", 1))
	s := w.Until("a change of a known pod", func(s *model.Snapshot) bool {
		p, ok := s.Pods.Get(model.PodID{Namespace: "shop", Name: "known"})
		return ok && p.Labels.String() != ""
	})
	if hasEarly(s) {
		t.Error("a new pod is known, so it may be attached, although its policies are not")
	}
	w.Problem("NetworkPolicy", "new pods (1) are unknown")
	f.set(func() { f.forbidden = "" })
	w.Until("early", hasEarly)
	for _, s := range w.All() {
		if hasEarly(s) && !hasPolicy("NetworkPolicy", "red", "isolated")(s) {
			t.Error("a state has the pod without its policy")
		}
	}
	w.NoProblems()
}
