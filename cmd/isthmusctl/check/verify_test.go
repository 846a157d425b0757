// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap/mapsim"
)

const policyAlone = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from:
    - namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [a]}, {key: zone, operator: Exists}]}
      podSelector: {matchLabels: {app: api}}
    ports: [{port: http}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: fence}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: vault}}}
  ingress:
  - action: Deny
    from: [{namespaces: {matchLabels: {impossible: "yes"}}}]
`

// verify adds pods that match the selectors to a directory that holds only policies.
func TestVerifyPoliciesAlone(t *testing.T) {
	dir := strings.TrimSuffix(clitest.Write(t, "p.yaml", policyAlone), "p.yaml")
	status, out, errs := ctl("verify", "--manifests", dir)
	m := regexp.MustCompile(`^verify: policies=2 tables=(\d+) cells=(\d{3,}) differ=0\n$`).FindStringSubmatch(out)
	if status != 0 || m == nil || m[1] < "3" || !strings.Contains(errs, "pods that policies name and no manifest describes") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
}

// verify names and skips a document with errors, and does not exit with 0.
func TestVerifyBadDocument(t *testing.T) {
	dir := strings.TrimSuffix(clitest.Write(t, "p.yaml", policyAlone+"---\nkind: NetworkPolicy\n"), "p.yaml")
	status, out, errs := ctl("verify", "--manifests", dir)
	if status != 2 || !strings.Contains(out, "verify: policies=2 ") || !strings.Contains(errs, "skipped: p.yaml: document 3") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
}

// TestVerifyLive passes the flags on, and refuses those that do not go with --live.
func TestVerifyLive(t *testing.T) {
	for args, want := range map[string]struct {
		status int
		text   string
	}{
		"--live --socket /s --timeout 7s": {1, "live /s 7s\n"},
		"--live":                          {1, "live " + socket.Default + " 30s\n"},
		"--live -m .":                     {2, "leave out --manifests"},
		"--live --kubeconfig x":           {2, "leave out --manifests, --kubeconfig"},
		"--live -o sarif":                 {2, "leave out --output sarif"},
		"--socket /s -m .":                {2, "--socket is for --live"},
	} {
		status, out, errs := ctl(append([]string{"verify"}, strings.Fields(args)...)...)
		if status != want.status || !strings.Contains(out+errs, want.text) {
			t.Errorf("verify %s: %d, %s%s, want %d with %q", args, status, out, errs, want.status, want.text)
		}
	}
}

func TestVerifyErrors(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing":  {[]string{"verify"}, "give --manifests DIR or --kubeconfig FILE"},
		"missing":  {[]string{"verify", "-m", "nowhere"}, "nowhere"},
		"argument": {[]string{"verify", "x"}, `unexpected argument "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			if status, out, errs := ctl(c.args...); status != 2 || !strings.Contains(errs, c.want) || out != "" {
				t.Errorf("exit status %d, %q, %q", status, out, errs)
			}
		})
	}
}

// verify prints each difference with endpoint, direction, peer, port and the verdict of each
// side, and fails.
func TestVerifyDifference(t *testing.T) {
	o, _, errs := manifests.Parse("p.yaml", []byte(policyAlone), manifests.DefaultLimits())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	complete.AddPlaceholders(&o)
	complete.Place(&o)
	s := o.Snapshot()
	cluster := engine.Compile(s, nil)
	var all cells.Result
	for name, state := range cluster.States {
		node, err := encode(s, state, cluster.Unsupported[name])
		if err != nil {
			t.Fatal(err)
		}
		peers := node.Maps.(*mapsim.Maps).Peers
		for a := range peers {
			if pod := s.Owners().Pods[a]; pod != nil && pod.Labels == model.MakeLabels(map[string]string{"app": "api"}) {
				peers[a] = 999 // a class that no table knows
			}
		}
		r, err := cells.Compare(context.Background(), node)
		if err != nil {
			t.Fatal(err)
		}
		all.Add(r)
	}
	var out bytes.Buffer
	if err := (env{cli.Env{Stdout: &out}}).writeVerified(verified{Result: all}.report(s, nil), "text"); !errors.Is(err, cli.ErrNo) {
		t.Errorf("error %v", err)
	}
	want := regexp.MustCompile(`(?m)^differs: shop/assumed-\d+ on assumed-linux, ingress, peer 100\.64\.\S+ \(\S+/assumed-\d+\), TCP/20000: ` +
		`evaluate says allow \(ingress rule 0 of NetworkPolicy shop/web, tier NetworkPolicy\), tables says allow \(.*\), maps says deny, HNS 9\.5 says allow \(rule .*\), HNS 13\.3, 15\.5 says allow \(rule .*\)$`)
	if !want.MatchString(out.String()) || !regexp.MustCompile(`differ=[1-9]\d*\n$`).MatchString(out.String()) {
		t.Errorf("got\n%s", out.String())
	}
}

// What is not exact is a warning at the line of its policy, and a difference is an error.
func TestVerifyAnnotations(t *testing.T) {
	v := verified{inexact: []notExact{{`node "n1": too many ports`, "NetworkPolicy shop/web"}, {"other", "NetworkPolicy shop/absent"}}}
	v.Differ, v.Problems = 1, []string{"wrong"}
	r := v.report(model.MakeSnapshot(nil, nil, nil, nil), map[string]model.Place{"NetworkPolicy shop/web": {File: "d/p.yaml", Line: 7}})
	var out bytes.Buffer
	if err := (env{cli.Env{Stdout: &out}}).writeVerified(r, "github"); !errors.Is(err, cli.ErrNo) {
		t.Errorf("error %v", err)
	}
	want := "::warning file=d/p.yaml,line=7,title=isthmusctl not-exact::node \"n1\": too many ports\n" +
		"::warning title=isthmusctl not-exact::other\n::error title=isthmusctl differs::wrong\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := (env{cli.Env{Stdout: &out}}).writeVerified(r, "text"); !errors.Is(err, cli.ErrNo) || !strings.Contains(out.String(), "not exact: node \"n1\": too many ports\n") {
		t.Errorf("%v: %s", err, out.String())
	}
}
