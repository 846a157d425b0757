// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// fuzzLimits keep a fuzzing step short.
func fuzzLimits() Limits {
	return Limits{FileBytes: 1 << 16, TotalBytes: 1 << 16, Files: 1, Directories: 1, Objects: 100, Pods: 100, Depth: 64}
}

// seed adds the documents of the test data and of the examples.
func seed(f *testing.F, add func(doc []byte)) {
	for _, pattern := range []string{"testdata/*/*.yaml", "testdata/*/*.yml", examples + "/*/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			for _, d := range splitYAML(data) {
				add(d.text)
			}
		}
	}
}

// FuzzDocuments reads any text as YAML and as JSON.
func FuzzDocuments(f *testing.F) {
	seed(f, func(doc []byte) { f.Add(doc) })
	f.Add([]byte(bomb()))
	f.Add([]byte(`{"kind":"List","apiVersion":"v1","items":[{"kind":"PodList","apiVersion":"v1","items":[{}]}]}`))
	f.Add([]byte("a: 1\n...\n%YAML 1.1\n---\n- {? [a] : b}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range []string{"a.yaml", "a.json"} {
			o, warnings, errs := Parse(name, text, fuzzLimits())
			for _, e := range errs {
				checkError(t, e)
			}
			for _, w := range warnings {
				checkError(t, DocumentError(w))
			}
			checkObjects(t, o)
		}
	})
}

func checkError(t *testing.T, e DocumentError) {
	t.Helper()
	if text := e.Error(); strings.ContainsAny(text, "\n\r") || e.Detail == "" || e.File == "" {
		t.Errorf("not a useful error: %q", text)
	}
}

func checkObjects(t *testing.T, o model.Objects) {
	t.Helper()
	for _, p := range o.Pods {
		for _, ip := range p.IPs {
			checkAddr(t, ip)
		}
		if p.Namespace == "" || p.Name == "" {
			t.Errorf("a pod without a name: %+v", p)
		}
	}
	for _, n := range o.Nodes {
		for _, ip := range n.Addresses {
			checkAddr(t, ip)
		}
		for _, p := range n.PodCIDRs {
			checkPrefix(t, p)
		}
	}
	for _, p := range o.Policies {
		checkPolicy(t, p)
	}
	s := o.Snapshot()
	policy.NewEvaluator(s)
	compile.Once(compile.Input{Snapshot: s, Node: "n1"})
}

func checkAddr(t *testing.T, a netip.Addr) {
	t.Helper()
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
		t.Errorf("address %s", a)
	}
}

func checkPrefix(t *testing.T, p netip.Prefix) {
	t.Helper()
	if !p.IsValid() || p.Addr().Is4In6() || p != p.Masked() {
		t.Errorf("prefix %s", p)
	}
}

// checkPolicy checks what package model promises of a policy.
func checkPolicy(t *testing.T, p *model.Policy) {
	t.Helper()
	if p.Origin.Name == "" || p.Origin.Kind == "" || p.Priority < 0 && p.Priority != math.MinInt32 || p.Priority > 1000 {
		t.Errorf("policy %+v", p)
	}
	if p.Tier != model.TierNetworkPolicy && p.Isolates != [2]bool{} {
		t.Errorf("%s isolates", p.Origin)
	}
	for _, d := range model.Directions {
		for _, r := range p.Rules[d] {
			if r.AnyPeer == (len(r.Peers) > 0) || r.AnyPort == (len(r.Ports) > 0) || len(r.Name) > 4*100 {
				t.Errorf("%s: rule %+v", p.Origin, r)
			}
			if p.Tier == model.TierNetworkPolicy && r.Action != model.ActionAccept {
				t.Errorf("%s: rule %+v", p.Origin, r)
			}
			for _, peer := range r.Peers {
				if peer.Kind == model.PeerBlock {
					checkPrefix(t, peer.Block.CIDR)
					for _, e := range peer.Block.Except {
						checkPrefix(t, e)
						if e.Bits() <= peer.Block.CIDR.Bits() || !peer.Block.CIDR.Contains(e.Addr()) {
							t.Errorf("%s: %s", p.Origin, peer)
						}
					}
				}
				if peer.Kind == model.PeerUnknown && (len(r.Peers) > 1 || !r.AnyPort) {
					t.Errorf("%s: a rule that fails closed in part: %+v", p.Origin, r)
				}
			}
			for _, m := range r.Ports {
				if m.Name == "" && (!m.Protocol.HasPorts() || m.First > m.Last) || m.Name != "" && m.Last != 0 {
					t.Errorf("%s: port %+v", p.Origin, m)
				}
			}
		}
	}
}

// specs yields the specs of the seeds of some kinds, as JSON.
func specs(f *testing.F, kinds ...string) {
	seed(f, func(doc []byte) {
		raw, err := document{text: doc, base: 1}.toJSON(DefaultLimits())
		if err != nil {
			return
		}
		var o struct {
			Kind string          `json:"kind"`
			Spec json.RawMessage `json:"spec"`
		}
		if json.Unmarshal(raw, &o) != nil {
			return
		}
		for i, k := range kinds {
			if o.Kind == k {
				if len(kinds) == 1 {
					f.Add([]byte(o.Spec))
				} else {
					f.Add([]byte(o.Spec), byte(i))
				}
			}
		}
	})
}

// object wraps a spec; it returns nil if that is not JSON.
func object(t *testing.T, apiVersion, kind, namespace, name string, spec []byte) []byte {
	t.Helper()
	if !json.Valid(spec) || checkDepth(spec, 60) != nil {
		return nil
	}
	raw, err := json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]string{"namespace": namespace, "name": name}, "spec": json.RawMessage(spec)})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// FuzzNetworkPolicy converts any spec, as newly written and as an API server may have stored it.
func FuzzNetworkPolicy(f *testing.F) {
	specs(f, "NetworkPolicy")
	k, _ := convert.KindOf("NetworkPolicy")
	f.Fuzz(func(t *testing.T, spec []byte) {
		raw := object(t, "networking.k8s.io/v1", "NetworkPolicy", "shop", "fuzz", spec)
		if raw == nil {
			return
		}
		o, _, errs := Parse("a.json", raw, DefaultLimits())
		for _, e := range errs {
			checkError(t, e)
		}
		checkObjects(t, o)
		if (len(errs) == 0) != (len(o.Policies) == 1) {
			t.Errorf("%d errors and %d policies", len(errs), len(o.Policies))
		}
		var np networkingv1.NetworkPolicy
		if kjson.UnmarshalCaseSensitivePreserveInts(raw, &np) != nil {
			return
		}
		r := k.Record(&np)
		if p, ok := r.Value.(*model.Policy); ok {
			checkPolicy(t, p)
			if len(errs) == 0 && r.Bad {
				t.Errorf("good when written, bad when stored: %v", r.Notes)
			}
		}
	})
}

// FuzzClusterPolicy does the same for the kinds of cluster-wide policies.
func FuzzClusterPolicy(f *testing.F) {
	kinds := slices.DeleteFunc(convert.CustomKinds(), func(k convert.Kind) bool { return k.Group != "policy.networking.k8s.io" })
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	specs(f, names...)
	f.Fuzz(func(t *testing.T, spec []byte, which byte) {
		k := kinds[int(which)%len(kinds)]
		raw := object(t, "policy.networking.k8s.io"+"/"+k.Versions[0], k.Name, "", "default", spec)
		if raw == nil {
			return
		}
		o, warnings, errs := Parse("a.json", raw, DefaultLimits())
		for _, e := range errs {
			checkError(t, e)
		}
		for _, w := range warnings {
			checkError(t, DocumentError(w))
		}
		checkObjects(t, o)
		if (len(errs) == 0) != (len(o.Policies) == 1) {
			t.Errorf("%d errors and %d policies", len(errs), len(o.Policies))
		}
		u := &unstructured.Unstructured{}
		if json.Unmarshal(raw, &u.Object) != nil {
			return
		}
		r := k.Record(u)
		if p, ok := r.Value.(*model.Policy); ok {
			checkPolicy(t, p)
			// An API server drops unknown fields of what it gets, so stored ones are of its own version.
			unknown := func(w Warning) bool { return strings.Contains(w.Detail, "no such field") }
			if len(errs) == 0 && r.Bad && !slices.ContainsFunc(warnings, unknown) {
				t.Errorf("good when written, bad when stored: %v", r.Notes)
			}
		}
	})
}
