// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

func startAPI(t *testing.T, f *fakeAPI) *follower {
	t.Helper()
	a, err := NewAPIServer(testAPIConfig(f.kubeconfig(t)), quiet())
	if err != nil {
		t.Fatal(err)
	}
	return follow(t, a)
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
			w.until("anything", func(*model.Snapshot) bool { return true })
			s := w.all()[0]
			if s.Namespaces.Len() != 1 || s.Nodes.Len() != 1 || s.Pods.Len() != 2 || s.Policies.Len() != 2 {
				t.Fatalf("first snapshot has %d namespaces, %d nodes, %d pods, %d policies", s.Namespaces.Len(), s.Nodes.Len(), s.Pods.Len(), s.Policies.Len())
			}
			// The same objects from a file mean the same.
			o, _, errs := Parse("world.yaml", []byte(world1+"---"+cnpAdmin), DefaultLimits())
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if _, changed := replaceSnapshot(s, o.Snapshot()); changed {
				t.Error("the API server and the file differ")
			}
			w.noProblems()
		})
	}
}

func TestAPIChangesAreIncremental(t *testing.T) {
	f := newFakeAPI(t)
	f.protobuf = true
	f.put(t, world1)
	w := startAPI(t, f)
	first := w.until("db", hasPod("db"))
	f.put(t, `{apiVersion: v1, kind: Pod, metadata: {name: new, namespace: shop}, spec: {nodeName: n1}, status: {podIP: 10.244.1.9}}`)
	second := w.until("new", hasPod("new"))
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
	w.until("no db", func(s *model.Snapshot) bool { return !hasPod("db")(s) })
	f.put(t, `{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: b}}}`)
	w.until("label", func(s *model.Snapshot) bool {
		v, _ := s.Namespace("shop").Labels.Get("team")
		return v == "b"
	})

	// A kubelet's sign of life and a pod's condition change nothing here.
	f.put(t, `
{apiVersion: v1, kind: Pod, metadata: {name: new, namespace: shop, annotations: {note: seen}}, spec: {nodeName: n1},
 status: {podIP: 10.244.1.9, conditions: [{type: Ready, status: "True"}]}}`)
	w.still(100 * time.Millisecond)
}

func TestAPIListsArePaged(t *testing.T) {
	f := newFakeAPI(t)
	f.streams = false
	var text strings.Builder
	for i := range 23 {
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Pod, metadata: {name: p%d, namespace: shop}}\n", i)
	}
	f.put(t, text.String())
	cfg := testAPIConfig(f.kubeconfig(t))
	cfg.PageSize = 5
	a, err := NewAPIServer(cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	s := follow(t, a).until("pods", func(*model.Snapshot) bool { return true })
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
	a, err := NewAPIServer(cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	w := follow(t, a)
	w.until("db", hasPod("db"))
	before, begin := len(w.all()), time.Now()
	for i := range 500 {
		f.put(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p%d, namespace: shop}}", i))
	}
	w.until("the last", hasPod("p499"))
	took := time.Since(begin)
	if n := len(w.all()) - before; n > 2+int(took/cfg.Interval) {
		t.Errorf("%d snapshots in %s, want one per %s at most", n, took, cfg.Interval)
	}
}

func TestAPIKindAppearsAndDisappears(t *testing.T) {
	f := newFakeAPI(t)
	f.put(t, world1)
	w := startAPI(t, f)
	w.until("db", hasPod("db"))
	f.put(t, cnpAdmin)
	w.still(150 * time.Millisecond) // the kind is not served
	f.set(func() { f.served[cnpPath] = true })
	s := w.until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))
	p, _ := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
	if p.Tier != model.TierAdmin || p.Priority != 7 || len(p.Rules[model.Egress]) != 1 {
		t.Errorf("guard is %+v", p)
	}
	// The same object in a newer version: it must not be missing in between.
	f.put(t, strings.Replace(cnpAdmin, "v1alpha2", "v1beta1", 1))
	from := len(w.all())
	f.set(func() { delete(f.served, cnpPath); f.served[cnpBetaPath] = true })
	f.put(t, strings.Replace(strings.Replace(cnpAdmin, "v1alpha2", "v1beta1", 1), "priority: 7", "priority: 8", 1))
	w.until("priority 8", func(s *model.Snapshot) bool {
		p, ok := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
		return ok && p.Priority == 8
	})
	for _, s := range w.all()[from:] {
		if !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) {
			t.Error("the policy was missing while the version changed")
		}
	}
	w.noProblems()
	f.set(func() { delete(f.served, cnpBetaPath) })
	w.until("no guard", func(s *model.Snapshot) bool { return !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) })
	w.noProblems()
	f.set(func() { f.served[cnpBetaPath] = true })
	w.until("guard again", hasPolicy("ClusterNetworkPolicy", "", "guard"))
}

func TestAPIKindThatIsMissingForAMoment(t *testing.T) {
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	f.put(t, world1+"---"+cnpAdmin)
	cfg := testAPIConfig(f.kubeconfig(t))
	cfg.Discovery = 200 * time.Millisecond
	a, err := NewAPIServer(cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	w := follow(t, a)
	w.until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))
	f.set(func() { delete(f.served, cnpPath) }) // as in the first moments of an API server
	time.Sleep(250 * time.Millisecond)
	f.set(func() { f.served[cnpPath] = true })
	f.put(t, `{apiVersion: v1, kind: Pod, metadata: {name: after, namespace: shop}}`)
	w.until("after", hasPod("after"))
	time.Sleep(400 * time.Millisecond)
	for _, s := range w.all() {
		if !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) {
			t.Fatal("the policy was dropped")
		}
	}
	w.noProblems()
}

// TestAPIServerThatHasJustStarted expects nothing to be handed out while the API
// server does not know yet which kinds it serves, unless that lasts.
func TestAPIServerThatHasJustStarted(t *testing.T) {
	for name, forbidden := range map[string]string{"ready later": "", "readyz is forbidden": "/readyz"} {
		t.Run(name, func(t *testing.T) {
			f := newFakeAPI(t)
			f.starting, f.forbidden = true, forbidden
			f.put(t, world1+"---"+cnpAdmin)
			cfg := testAPIConfig(f.kubeconfig(t))
			cfg.CatchUp = time.Second
			a, err := NewAPIServer(cfg, quiet())
			if err != nil {
				t.Fatal(err)
			}
			w := follow(t, a)
			w.still(cfg.CatchUp / 2)
			w.problem("discovery", "not all kinds are served yet", "/readyz")
			if forbidden != "" {
				w.until("db", hasPod("db"))
			}
			f.set(func() { f.served[cnpPath], f.starting = true, false })
			w.until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))
			for _, s := range w.all() {
				if forbidden == "" && !hasPolicy("ClusterNetworkPolicy", "", "guard")(s) {
					t.Error("a state without the policy was handed out")
				}
			}
			w.noProblems()
		})
	}
}

func TestAPIUnknownVersionIsReported(t *testing.T) {
	f := newFakeAPI(t)
	f.served["/apis/policy.networking.k8s.io/v7/clusternetworkpolicies"] = true
	f.put(t, world1)
	w := startAPI(t, f)
	w.until("db", hasPod("db"))
	w.problem("ClusterNetworkPolicy", "v7", "not enforced")
}

func TestAPIBadPolicies(t *testing.T) {
	f := newFakeAPI(t)
	f.served[cnpPath] = true
	f.put(t, world1+"---"+cnpAdmin)
	w := startAPI(t, f)
	w.until("guard", hasPolicy("ClusterNetworkPolicy", "", "guard"))

	// No version of it was valid: the valid part is in force, and blocks.
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
	s := w.until("broken", hasPolicy("NetworkPolicy", "shop", "broken"))
	p, _ := s.Policies.Get(model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "broken"})
	if !p.Isolates[model.Ingress] || len(p.Rules[model.Ingress]) != 1 || p.Rules[model.Ingress][0].Index != 1 {
		t.Errorf("broken is %+v", p)
	}
	w.problem("NetworkPolicy shop/broken", "spec.ingress[0].from[0].ipBlock.cidr", "10.0.0.300/8")

	// An object that does not fit its type: the last good version stays.
	before, _ := w.last().Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
	f.put(t, strings.Replace(cnpAdmin, "priority: 7", "priority: high", 1))
	w.problem("ClusterNetworkPolicy guard", "spec.priority", "high", "must be an integer")
	f.put(t, `{apiVersion: v1, kind: Pod, metadata: {name: after, namespace: shop}}`)
	s = w.until("after", hasPod("after"))
	if after, _ := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}); after != before {
		t.Error("the last good version did not stay")
	}

	// Fixed: in force, and no longer a problem.
	f.put(t, strings.Replace(cnpAdmin, "priority: 7", "priority: 9", 1))
	f.remove(t, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: broken, namespace: shop}}`)
	w.until("priority 9", func(s *model.Snapshot) bool {
		p, _ := s.Policies.Get(model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"})
		return p.Priority == 9
	})
	w.noProblems()
}

func TestAPIAway(t *testing.T) {
	f := newFakeAPI(t)
	f.put(t, world1)
	w := startAPI(t, f)
	w.until("db", hasPod("db"))
	w.noProblems()
	f.set(func() { f.down = true })
	f.server.CloseClientConnections()
	w.problem("API server", "Pod", "the last known state stays in force")
	n := len(w.all())
	// While it is away one pod goes and one comes.
	f.remove(t, `{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}}`)
	f.put(t, `{apiVersion: v1, kind: Pod, metadata: {name: new, namespace: shop}}`)
	w.still(50 * time.Millisecond)
	f.set(func() { f.down = false })
	s := w.until("new", hasPod("new"))
	w.until("no db", func(s *model.Snapshot) bool { return !hasPod("db")(s) })
	if s.Policies.Len() != 1 {
		t.Error("a policy got lost")
	}
	if len(w.all()) == n {
		t.Error("nothing was published")
	}
	w.noProblems()
}

// Changes during an outage of the API server are published as one change, also if one kind can be read
// later than the others; but not if it cannot be read at all.
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
		comes   bool // the kind that is late comes at all
	}{"late": {20 * time.Second, true}, "never": {100 * time.Millisecond, false}} {
		t.Run(name, func(t *testing.T) {
			f := newFakeAPI(t)
			f.put(t, world1)
			cfg := testAPIConfig(f.kubeconfig(t))
			cfg.CatchUp = c.catchUp
			a, err := NewAPIServer(cfg, quiet())
			if err != nil {
				t.Fatal(err)
			}
			w := follow(t, a)
			w.until("db", hasPod("db"))
			w.noProblems()
			f.set(func() { f.down = true })
			f.server.CloseClientConnections()
			w.problem("API server", "NetworkPolicy")
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
				w.still(1500 * time.Millisecond) // the other kinds are up to date by then
				f.set(func() { f.forbidden = "" })
				w.until("the new cluster", func(s *model.Snapshot) bool { return isNew(s) && isOpen(s) })
			} else {
				w.until("the policy alone", isOpen)
			}
			for _, s := range w.all() {
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
	w.problem("NetworkPolicy", "not for you", "grant this program's account the right")
	w.still(100 * time.Millisecond) // without the policies everything would be allowed
	f.set(func() { f.forbidden = "" })
	s := w.until("all", func(*model.Snapshot) bool { return true })
	if s.Policies.Len() != 1 {
		t.Error("published without the policies")
	}
	w.noProblems()
}

func TestAPIConfigErrors(t *testing.T) {
	err := APIConfig{}.Validate()
	for _, want := range []string{"PageSize", "Interval", "Discovery", "Timeout", "Backoff", "CatchUp"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no error on %s: %v", want, err)
		}
	}
	if _, err := NewAPIServer(DefaultAPIConfig("/does/not/exist"), quiet()); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("kubeconfig that is not there: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := NewAPIServer(DefaultAPIConfig(""), quiet()); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("not in a cluster: %v", err)
	}
}
