// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// An explanation names the Service that may hide the client, and refuses to answer for the
// addresses of the Service, which policy never sees.
func TestExplainServices(t *testing.T) {
	dir := directory(t, `
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
		if status, out, errs := ctl(args...); status != 2 || out != "" || !strings.Contains(errs, address+" is an address of Service shop/front") || !strings.Contains(errs, "shop/web") {
			t.Errorf("to %s: exit status %d, %q, %q", address, status, out, errs)
		}
	}
}
