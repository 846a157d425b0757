// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	kjson "sigs.k8s.io/json"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

// corpora is the directory of public test data, which is not part of the
// repository: make corpora CORPORA=dir.
func corpora(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("CORPORA")
	if dir == "" {
		t.Skip("needs public test data: make corpora CORPORA=dir runs it")
	}
	return dir
}

// eachLine calls f for every line of a compressed file.
func eachLine(t *testing.T, path string, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		f(s.Bytes())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestValidationVectors compares with what kube-apiserver 1.36 accepted,
// refused and made of 483 real NetworkPolicies.
func TestValidationVectors(t *testing.T) {
	path := filepath.Join(corpora(t), "vectors", "validation-v1.36.jsonl.gz")
	n, accepted := 0, 0
	eachLine(t, path, func(line []byte) {
		var v struct {
			File      string
			Object    json.RawMessage
			Valid     bool
			Errors    []string
			Strict    []string
			Defaulted json.RawMessage
		}
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		n++
		o, warnings, errs := Parse("vector.json", v.Object, DefaultLimits())
		if (len(errs) == 0) != v.Valid {
			t.Errorf("%s: got %v, API server says valid=%t %v\n%s", v.File, errs, v.Valid, v.Errors, v.Object)
			return
		}
		checkPaths(t, v.File, v.Errors, errs)
		checkStrict(t, v.File, v.Strict, warnings)
		if v.Valid {
			accepted++
			if len(o.Policies) != 1 {
				t.Errorf("%s: accepted and yet not there", v.File)
			}
		}
		if len(v.Defaulted) == 0 || string(v.Defaulted) == "null" {
			return
		}
		var np networkingv1.NetworkPolicy
		if err := kjson.UnmarshalCaseSensitivePreserveInts(v.Object, &np); err != nil {
			t.Fatal(err)
		}
		defaultNetworkPolicy(&np)
		got, _ := json.Marshal(np.Spec)
		if d := cmp.Diff(asMap(t, v.Defaulted), asMap(t, got)); d != "" {
			t.Errorf("%s: defaults differ (-API server +here):\n%s", v.File, d)
		}
	})
	t.Logf("objects=%d accepted=%d refused=%d", n, accepted, n-accepted)
}

// checkPaths wants an error on every field that the API server complains of.
// The path of a value of the wrong type is more exact here.
func checkPaths(t *testing.T, file string, want []string, got []DocumentError) {
	t.Helper()
	for _, w := range want {
		if strings.HasPrefix(w, "decode: ") {
			continue
		}
		path, _, _ := strings.Cut(w, ": ")
		if !slices.ContainsFunc(got, func(e DocumentError) bool { return e.Field == path }) {
			t.Errorf("%s: no error on %s: %v", file, path, got)
		}
	}
}

func checkStrict(t *testing.T, file string, strict []string, warnings []Warning) {
	t.Helper()
	for _, s := range strict {
		path := strings.Trim(strings.TrimPrefix(s, "strict: unknown field "), `"`)
		if path != "status" && !slices.ContainsFunc(warnings, func(w Warning) bool { return w.Field == path }) {
			t.Errorf("%s: no warning on %s: %v", file, path, warnings)
		}
	}
}

func asMap(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

type verdictCase struct {
	Name       string
	Source     string
	ExpectedBy string `json:"expected_by"`
	Objects    []json.RawMessage
	Queries    []struct {
		Src, Dst, Proto string
		Port            uint16
		Want            string
	}
}

// TestVerdictVectors asks the reference and the compiled tables of every node
// about flows whose verdict other projects have published or agree on.
func TestVerdictVectors(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpora(t), "vectors", "*.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.Contains(path, "validation") {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			cases, verdicts := 0, 0
			eachLine(t, path, func(line []byte) {
				var c verdictCase
				if err := json.Unmarshal(line, &c); err != nil {
					t.Fatal(err)
				}
				cases++
				verdicts += c.check(t)
			})
			t.Logf("cases=%d verdicts=%d", cases, verdicts)
		})
	}
}

func (c *verdictCase) check(t *testing.T) (verdicts int) {
	t.Helper()
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": c.Objects})
	if err != nil {
		t.Fatal(err)
	}
	objects, _, errs := Parse("case.json", list, DefaultLimits())
	if len(errs) > 0 {
		t.Errorf("%s (%s): %v", c.Name, c.Source, errs)
		return 0
	}
	s := objects.Snapshot()
	reference := policy.NewEvaluator(s)
	states := compileAll(t, c.Name, s)
	for _, q := range c.Queries {
		f, ok := c.flow(t, s, q.Src, q.Dst, q.Proto, q.Port)
		if !ok {
			continue
		}
		verdicts++
		egress, ingress := reference.Flow(f)
		if got := both(egress, ingress); got != q.Want {
			t.Errorf("%s: %s -> %s %s/%d: reference %s (egress %s; ingress %s), want %s by %s, source %s",
				c.Name, q.Src, q.Dst, q.Proto, q.Port, got, egress, ingress, q.Want, c.ExpectedBy, c.Source)
		}
		owners := s.Owners()
		if src, ok := owners.Pods[f.Src]; ok {
			egress = states[src.Node].Decide(world.EndpointID(src), model.Egress, f.Dst, f.Protocol, f.Port)
		}
		if dst, ok := owners.Pods[f.Dst]; ok {
			ingress = states[dst.Node].Decide(world.EndpointID(dst), model.Ingress, f.Src, f.Protocol, f.Port)
		}
		if got := both(egress, ingress); got != q.Want {
			t.Errorf("%s: %s -> %s %s/%d: tables %s, want %s by %s", c.Name, q.Src, q.Dst, q.Proto, q.Port, got, q.Want, c.ExpectedBy)
		}
	}
	return verdicts
}

// compileAll compiles every node that has pods.
func compileAll(t *testing.T, name string, s *model.Snapshot) map[string]*model.State {
	t.Helper()
	states := make(map[string]*model.State)
	for _, p := range s.Pods.All() {
		if states[p.Node] != nil {
			continue
		}
		state, unsupported := policy.Compile(policy.Input{Snapshot: s, Node: p.Node, Endpoints: world.Endpoints(s, p.Node)})
		if len(unsupported) > 0 {
			t.Errorf("%s: %v", name, unsupported)
		}
		states[p.Node] = state
	}
	return states
}

func both(egress, ingress model.Decision) string {
	if egress.Verdict == model.Allow && ingress.Verdict == model.Allow {
		return "allow"
	}
	return "deny"
}

func (c *verdictCase) flow(t *testing.T, s *model.Snapshot, src, dst, proto string, port uint16) (model.Flow, bool) {
	t.Helper()
	from, err := address(s, src)
	if err != nil {
		t.Errorf("%s: %v", c.Name, err)
		return model.Flow{}, false
	}
	to, err := address(s, dst)
	if err != nil {
		t.Errorf("%s: %v", c.Name, err)
		return model.Flow{}, false
	}
	p, err := model.ParseProtocol(proto)
	if err != nil {
		t.Errorf("%s: %v", c.Name, err)
		return model.Flow{}, false
	}
	return model.Flow{Src: from, Dst: to, Protocol: p, Port: port}, true
}

// address reads "ns/pod", "ns/pod@IP" or "ip:ADDR".
func address(s *model.Snapshot, end string) (netip.Addr, error) {
	if text, ok := strings.CutPrefix(end, "ip:"); ok {
		return netip.ParseAddr(text)
	}
	id, text, found := strings.Cut(end, "@")
	if found {
		return netip.ParseAddr(text)
	}
	ns, name, _ := strings.Cut(id, "/")
	pod, ok := s.Pods.Get(model.PodID{Namespace: ns, Name: name})
	if !ok || len(pod.IPs) == 0 {
		return netip.Addr{}, fmt.Errorf("no address of pod %s", id)
	}
	return pod.IPs[0], nil
}

// TestPublicManifests loads real directories. Some files are bad on purpose;
// none may be taken in silently or end the program.
func TestPublicManifests(t *testing.T) {
	root := filepath.Join(corpora(t), "manifests")
	dirs, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		o, warnings, errs := LoadDir(context.Background(), filepath.Join(root, d.Name()), DefaultLimits())
		t.Logf("%s: policies=%d pods=%d namespaces=%d warnings=%d errors=%d", d.Name(), len(o.Policies), len(o.Pods), len(o.Namespaces), len(warnings), len(errs))
		for _, e := range errs {
			if e.File == "" || e.Detail == "" || strings.ContainsAny(e.Error(), "\n\r") {
				t.Errorf("not a useful error: %q", e.Error())
			}
			if testing.Verbose() {
				t.Log("  ", e)
			}
		}
		policy.NewEvaluator(o.Snapshot())
	}
}
