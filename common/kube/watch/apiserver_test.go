// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

const world1 = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {kubernetes.io/os: windows}},
 spec: {podCIDRs: [10.244.1.0/24, "fd00:1::/64"]},
 status: {addresses: [{type: ExternalIP, address: 203.0.113.1}, {type: InternalIP, address: 192.168.0.1}, {type: Hostname, address: n1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u1, creationTimestamp: "2026-01-02T03:04:05Z", labels: {app: web}},
 spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]},
 status: {phase: Running, podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}, {ip: "fd00:1::2"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: n1}, status: {podIP: 10.244.1.3}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: shop, uid: u2}, spec: {podSelector: {}}}
`

const cnpAdmin = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guard}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {}}
  egress:
    - {name: metadata, action: Deny, to: [{networks: [169.254.169.254/32]}]}
`

func testAPIConfig(kubeconfig string) APIConfig {
	c := DefaultAPIConfig(kubeconfig)
	c.Discovery = 50 * time.Millisecond
	c.Backoff = 20 * time.Millisecond
	c.Timeout = time.Second
	return c
}

func startAPI(t *testing.T, f *fakeAPI) *kubetest.Follower {
	t.Helper()
	a, err := NewAPIServer(testAPIConfig(f.kubeconfig(t)), kubetest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	return kubetest.Follow(t, a)
}

func hasPolicy(kind, ns, name string) func(*model.Snapshot) bool {
	return func(s *model.Snapshot) bool {
		_, ok := s.Policies.Get(model.Origin{Kind: kind, Namespace: ns, Name: name})
		return ok
	}
}

func TestAPIFirstStateIsComplete(t *testing.T) {
	for _, form := range []struct{ streams, protobuf bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		t.Run(fmt.Sprintf("streams=%t,protobuf=%t", form.streams, form.protobuf), func(t *testing.T) {
			f := newFakeAPI(t)
			f.streams, f.protobuf = form.streams, form.protobuf
			f.served[cnpPath] = true
			f.put(t, world1+"---"+cnpAdmin)
			w := startAPI(t, f)
			w.Until("anything", func(*model.Snapshot) bool { return true })
			s := w.All()[0]
			if s.Namespaces.Len() != 1 || s.Nodes.Len() != 1 || s.Pods.Len() != 2 || s.Policies.Len() != 2 {
				t.Fatalf("first snapshot has %d namespaces, %d nodes, %d pods, %d policies", s.Namespaces.Len(), s.Nodes.Len(), s.Pods.Len(), s.Policies.Len())
			}
			// The same objects from a file have the same meaning.
			o, _, errs := manifests.Parse("world.yaml", []byte(world1+"---"+cnpAdmin), manifests.DefaultLimits())
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if _, changed := convert.ReplaceSnapshot(s, o.Snapshot()); changed {
				t.Error("the API server and the file differ")
			}
			w.NoProblems()
		})
	}
}

func TestAPIChangesAreIncremental(t *testing.T) {
	f := newFakeAPI(t)
	f.protobuf = true
	f.put(t, world1)
	w := startAPI(t, f)
	first := w.Until("db", kubetest.HasPod("db"))
	f.put(t, `{apiVersion: v1, kind: Pod, metadata: {name: new, namespace: shop}, spec: {nodeName: n1}, status: {podIP: 10.244.1.9}}`)
	second := w.Until("new", kubetest.HasPod("new"))
	id := model.PodID{Namespace: "shop", Name: "web"}
	was, _ := first.Pods.Get(id)
	is, _ := second.Pods.Get(id)
	if was != is {
		t.Error("a pod that did not change was replaced")
	}
	if first.Pods.Len() != 2 {
		t.Error("a published snapshot was modified")
	}
	f.remove(t, `{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}}`)
	w.Until("no db", func(s *model.Snapshot) bool { return !kubetest.HasPod("db")(s) })
	f.put(t, `{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: b}}}`)
	w.Until("label", func(s *model.Snapshot) bool {
		v, _ := s.Namespace("shop").Labels.Get("team")
		return v == "b"
	})

	// A heartbeat of a kubelet and a condition of a pod cause no new snapshot.
	f.put(t, `
{apiVersion: v1, kind: Pod, metadata: {name: new, namespace: shop, annotations: {note: seen}}, spec: {nodeName: n1},
 status: {podIP: 10.244.1.9, conditions: [{type: Ready, status: "True"}]}}`)
	w.Still(100 * time.Millisecond)
}

func TestAPIListsArePaged(t *testing.T) {
	f := newFakeAPI(t)
	f.streams = false
	var text strings.Builder
	text.WriteString("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n")
	for i := range 23 {
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Pod, metadata: {name: p%d, namespace: shop}}\n", i)
	}
	f.put(t, text.String())
	cfg := testAPIConfig(f.kubeconfig(t))
	cfg.PageSize = 5
	a, err := NewAPIServer(cfg, kubetest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	s := kubetest.Follow(t, a).Until("pods", func(*model.Snapshot) bool { return true })
	if s.Pods.Len() != 23 {
		t.Errorf("%d pods, want 23", s.Pods.Len())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pages < 3+5 { // three kinds in one page each, pods in five
		t.Errorf("%d pages", f.pages)
	}
	for _, l := range f.limits {
		if l != "5" {
			t.Errorf("a list was asked for with limit %q", l)
		}
	}
}

func TestAPICoalesces(t *testing.T) {
	f := newFakeAPI(t)
	f.put(t, world1)
	cfg := testAPIConfig(f.kubeconfig(t))
	cfg.Interval = 50 * time.Millisecond
	a, err := NewAPIServer(cfg, kubetest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	w := kubetest.Follow(t, a)
	w.Until("db", kubetest.HasPod("db"))
	before, begin := len(w.All()), time.Now()
	for i := range 500 {
		f.put(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p%d, namespace: shop}}", i))
	}
	w.Until("the last", kubetest.HasPod("p499"))
	took := time.Since(begin)
	if n := len(w.All()) - before; n > 2+int(took/cfg.Interval) {
		t.Errorf("%d snapshots in %s, want one per %s at most", n, took, cfg.Interval)
	}
}

func TestAPIKindAppearsAndDisappears(t *testing.T) {
	f := newFakeAPI(t)
	f.put(t, world1)
	w := startAPI(t, f)
	w.Until("db", kubetest.HasPod("db"))
	f.put(t, cnpAdmin)
	w.Still(150 * time.Millisecond) // the kind is not served
	f.set(func() { f.served[cnpPath] = true })
	s := w.Until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))
	p, _ := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
	if p.Tier != model.TierAdmin || p.Priority != 7 || len(p.Rules[model.Egress]) != 1 {
		t.Errorf("guard is %+v", p)
	}
	// The same object in a newer version: it must not be missing during the change.
	f.put(t, strings.Replace(cnpAdmin, "v1alpha2", "v1beta1", 1))
	from := len(w.All())
	f.set(func() { delete(f.served, cnpPath); f.served[cnpBetaPath] = true })
	f.put(t, strings.Replace(strings.Replace(cnpAdmin, "v1alpha2", "v1beta1", 1), "priority: 7", "priority: 8", 1))
	w.Until("priority 8", func(s *model.Snapshot) bool {
		p, ok := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
		return ok && p.Priority == 8
	})
	for _, s := range w.All()[from:] {
		if !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) {
			t.Error("the policy was missing while the version changed")
		}
	}
	w.NoProblems()
	f.set(func() { delete(f.served, cnpBetaPath) })
	w.Until("no guard", func(s *model.Snapshot) bool { return !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) })
	w.NoProblems()
	f.set(func() { f.served[cnpBetaPath] = true })
	w.Until("guard again", hasPolicy("ClusterNetworkPolicy", "", "guard"))
}

func TestAPIKindThatIsMissingForAMoment(t *testing.T) {
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	f.put(t, world1+"---"+cnpAdmin)
	cfg := testAPIConfig(f.kubeconfig(t))
	cfg.Discovery = 200 * time.Millisecond
	a, err := NewAPIServer(cfg, kubetest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	w := kubetest.Follow(t, a)
	w.Until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))
	f.set(func() { delete(f.served, cnpPath) }) // as in the first moments of an API server
	time.Sleep(250 * time.Millisecond)
	f.set(func() { f.served[cnpPath] = true })
	f.put(t, `{apiVersion: v1, kind: Pod, metadata: {name: after, namespace: shop}}`)
	w.Until("after", kubetest.HasPod("after"))
	time.Sleep(400 * time.Millisecond)
	for _, s := range w.All() {
		if !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) {
			t.Fatal("the policy was dropped")
		}
	}
	w.NoProblems()
}

// TestAPIServerThatHasJustStarted checks that nothing is published while the API server does not
// serve all kinds yet, unless that lasts.
func TestAPIServerThatHasJustStarted(t *testing.T) {
	for name, forbidden := range map[string]string{"ready later": "", "readyz is forbidden": "/readyz"} {
		t.Run(name, func(t *testing.T) {
			f := newFakeAPI(t)
			f.starting, f.forbidden = true, forbidden
			f.put(t, world1+"---"+cnpAdmin)
			cfg := testAPIConfig(f.kubeconfig(t))
			cfg.CatchUp = time.Second
			a, err := NewAPIServer(cfg, kubetest.Quiet())
			if err != nil {
				t.Fatal(err)
			}
			w := kubetest.Follow(t, a)
			w.Still(cfg.CatchUp / 2)
			w.Problem("discovery", "not all kinds are served yet", "/readyz")
			if forbidden != "" {
				w.Until("db", kubetest.HasPod("db"))
			}
			f.set(func() { f.served[cnpPath], f.starting = true, false })
			w.Until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))
			for _, s := range w.All() {
				if forbidden == "" && !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) {
					t.Error("a state without the policy was handed out")
				}
			}
			w.NoProblems()
		})
	}
}

func TestAPIBadPolicies(t *testing.T) {
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	f.put(t, world1+"---"+cnpAdmin)
	w := startAPI(t, f)
	w.Until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))

	// No earlier version was valid: the valid part is in force, and denies.
	f.put(t, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: broken, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
    - from: [{ipBlock: {cidr: 10.0.0.300/8}}]
    - from: [{podSelector: {}}]
`)
	s := w.Until("broken", hasPolicy("NetworkPolicy", "shop", "broken"))
	p, _ := s.Policies.Get(model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "broken"})
	if !p.Isolates[model.Ingress] || len(p.Rules[model.Ingress]) != 1 || p.Rules[model.Ingress][0].Index != 1 {
		t.Errorf("broken is %+v", p)
	}
	w.Problem("NetworkPolicy shop/broken", "spec.ingress[0].from[0].ipBlock.cidr", "10.0.0.300/8")

	// An object that does not fit its type: the last valid version stays.
	before, _ := w.Last().Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
	f.put(t, strings.Replace(cnpAdmin, "priority: 7", "priority: high", 1))
	w.Problem("ClusterNetworkPolicy guard", "spec.priority", "high", "must be an integer")
	f.put(t, `{apiVersion: v1, kind: Pod, metadata: {name: after, namespace: shop}}`)
	s = w.Until("after", kubetest.HasPod("after"))
	if after, _ := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}); after != before {
		t.Error("the last good version did not stay")
	}

	// The corrected object is in force, and no longer a problem.
	f.put(t, strings.Replace(cnpAdmin, "priority: 7", "priority: 9", 1))
	f.remove(t, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: broken, namespace: shop}}`)
	w.Until("priority 9", func(s *model.Snapshot) bool {
		p, _ := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
		return p.Priority == 9
	})
	w.NoProblems()
}

func TestAPIAway(t *testing.T) {
	f := newFakeAPI(t)
	f.put(t, world1)
	w := startAPI(t, f)
	w.Until("db", kubetest.HasPod("db"))
	w.NoProblems()
	f.set(func() { f.down = true })
	f.server.CloseClientConnections()
	w.Problem("API server", "Pod", "the last known state stays in force")
	n := len(w.All())
	// During the outage one pod is deleted and one is created.
	f.remove(t, `{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}}`)
	f.put(t, `{apiVersion: v1, kind: Pod, metadata: {name: new, namespace: shop}}`)
	w.Still(50 * time.Millisecond)
	f.set(func() { f.down = false })
	s := w.Until("new", kubetest.HasPod("new"))
	w.Until("no db", func(s *model.Snapshot) bool { return !kubetest.HasPod("db")(s) })
	if s.Policies.Len() != 1 {
		t.Error("a policy got lost")
	}
	if len(w.All()) == n {
		t.Error("nothing was published")
	}
	w.NoProblems()
}

// Changes during an outage of the API server are published as one change, also if one kind can be
// read later than the others. They are published without a kind that cannot be read at all.
func TestAPIAwayIsOneChange(t *testing.T) {
	const relabelled = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: b}}}"
	const opened = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop, uid: u2}
spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]}
`
	for name, c := range map[string]struct {
		catchUp time.Duration
		comes   bool // the late kind can be read at all
	}{"late": {20 * time.Second, true}, "never": {100 * time.Millisecond, false}} {
		t.Run(name, func(t *testing.T) {
			f := newFakeAPI(t)
			f.put(t, world1)
			cfg := testAPIConfig(f.kubeconfig(t))
			cfg.CatchUp = c.catchUp
			a, err := NewAPIServer(cfg, kubetest.Quiet())
			if err != nil {
				t.Fatal(err)
			}
			w := kubetest.Follow(t, a)
			w.Until("db", kubetest.HasPod("db"))
			w.NoProblems()
			f.set(func() { f.down = true })
			f.server.CloseClientConnections()
			w.Problem("API server", "NetworkPolicy")
			if a.Behind() == "" {
				t.Error("does not say that the snapshot may be out of date")
			}
			f.put(t, relabelled+"\n---"+opened)
			f.set(func() { f.down, f.forbidden = false, namespacesPath })
			isOpen := func(s *model.Snapshot) bool {
				p, _ := s.Policies.Get(model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "deny"})
				return len(p.Rules[model.Ingress]) > 0
			}
			isNew := func(s *model.Snapshot) bool {
				team, _ := s.Namespace("shop").Labels.Get("team")
				return team == "b"
			}
			if c.comes {
				w.Still(1500 * time.Millisecond) // the other kinds are up to date by then
				f.set(func() { f.forbidden = "" })
				w.Until("the new cluster", func(s *model.Snapshot) bool { return isNew(s) && isOpen(s) })
			} else {
				w.Until("the policy alone", isOpen)
			}
			for _, s := range w.All() {
				if c.comes && isOpen(s) && !isNew(s) {
					t.Error("a namespace of before was under a policy of after")
				}
			}
		})
	}
}

func TestAPIForbidden(t *testing.T) {
	f := newFakeAPI(t)
	f.forbidden = policiesPath
	f.put(t, world1)
	w := startAPI(t, f)
	w.Problem("NetworkPolicy", "not for you", "grant this program's account the right")
	w.Still(100 * time.Millisecond) // without the policies everything would be allowed
	f.set(func() { f.forbidden = "" })
	s := w.Until("all", func(*model.Snapshot) bool { return true })
	if s.Policies.Len() != 1 {
		t.Error("published without the policies")
	}
	w.NoProblems()
}

func TestAPIConfigErrors(t *testing.T) {
	err := APIConfig{}.Validate()
	for _, want := range []string{"PageSize", "Interval", "Discovery", "Timeout", "Backoff", "CatchUp"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no error on %s: %v", want, err)
		}
	}
	if _, err := NewAPIServer(DefaultAPIConfig("/does/not/exist"), kubetest.Quiet()); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("kubeconfig that is not there: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := NewAPIServer(DefaultAPIConfig(""), kubetest.Quiet()); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("not in a cluster: %v", err)
	}
}
