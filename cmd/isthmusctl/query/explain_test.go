// SPDX-License-Identifier: Apache-2.0

package query

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
)

// An explanation names the Service that may hide the client, and refuses to answer for the
// addresses of the Service, which policy never sees.
func TestExplainServices(t *testing.T) {
	dir := clitest.Directory(t, `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: node1, containers: [{name: web, image: web}]}
status: {podIPs: [{ip: 10.0.1.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: clients, namespace: shop}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.5, selector: {app: web}, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 198.51.100.4}]}}
`)
	args := []string{"explain", "-m", dir, "--from", "192.0.2.7", "--to", "shop/web", "-p", "80"}
	if status, out, errs := ctl(args...); status != 0 || !strings.Contains(out, "  but       Service shop/front (LoadBalancer) leads to this pod") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if _, out, _ := ctl(append(args, "-o", "json")...); !strings.Contains(out, `"notes": [`) {
		t.Errorf("JSON has no note: %s", out)
	}
	for _, address := range []string{"10.96.0.5", "198.51.100.4"} {
		args[6] = address
		if status, out, errs := ctl(args...); status == 2 || !strings.Contains(out, "Service shop/front") || !strings.Contains(out, "shop/web") {
			t.Errorf("to %s: exit status %d, %q, %q", address, status, out, errs)
		}
	}
}

// A stored policy with a malformed subject denies, and explain reports the reason.
func TestStoredMalformedSubject(t *testing.T) {
	dir := clitest.Directory(t, clusterHead+`
  tier: Admin
  priority: 1
  subject: {namespaces: {matchExpressions: [{key: team, operator: in, values: [x]}]}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
---
{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: lab}, spec: {containers: [{name: c}]}}
`)
	status, out, errs := ctl("explain", "--stored", "-m", dir, "--from", "lab/p", "--to", "shop/p", "-p", "80")
	if status != 1 || !strings.Contains(out, "ingress rule 0 of ClusterNetworkPolicy guard") || !strings.Contains(errs, "its Deny rules apply to every pod") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
}
