// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/test/apiserver"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// inexact are policies that no node enforces exactly, so that agents report them.
func inexact() string {
	var all []string
	for n := range 3 {
		all = append(all, fmt.Sprintf("apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: names-%d}\n"+
			"spec: {tier: Admin, priority: %d, subject: {namespaces: {}}, egress: [{action: Accept, to: [{domainNames: [example.com]}]}]}\n", n, n))
	}
	return strings.Join(all, "---\n")
}

// TestRunbooksOfTheAPI takes rights from an agent and from a controller at a real API server, and uses up the controller's
// ranges.
func TestRunbooksOfTheAPI(t *testing.T) {
	b := startBroken(t, "", cluster.Config{Linux: 1})
	ctx, one := t.Context(), b.cluster.Nodes[0]
	outside, addresses := b.cluster.Outside()
	server, err := apiserver.Start(ctx, apiserver.Config{NS: outside, Address: addresses[0]}, t.Output())
	b.must(err)
	t.Cleanup(func() { b.must(server.Close()) })
	b.must(server.ApplyFiles(ctx, "../../deploy/rbac/agent.yaml", "../../deploy/rbac/controller.yaml"))
	account := func(name string) string {
		path, err := server.ServiceAccount(ctx, "isthmus-system", name)
		b.must(err)
		return path
	}
	bind := func(kind, namespace, name string, roles ...string) {
		for _, role := range roles {
			b.must(server.Apply(ctx, fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata: {name: %s%s}\n"+
				"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}\nsubjects: [{kind: ServiceAccount, name: %s, namespace: isthmus-system}]",
				kind, role, namespace, role, name)))
		}
	}
	bind("ClusterRoleBinding", "", "agent", "isthmus-agent", "isthmus-agent-announce")
	bind("ClusterRoleBinding", "", "controller", "isthmus-controller")
	bind("RoleBinding", ", namespace: default", "controller", "isthmus-controller-events")
	b.must(server.Apply(ctx, inexact()))
	b.cluster.UseAPI(account("agent"), func(text string) error { return server.Apply(ctx, text) })
	b.must(b.cluster.Manifests.WriteNodes(b.cluster.Nodes))

	const http = "127.0.0.1:9471"
	controller := &process{t: t, path: filepath.Join(b.bin, "isthmus-controller"), log: filepath.Join(t.TempDir(), "log"), in: outside.Do}
	t.Cleanup(controller.stop)
	b.operator = newOperator(t, map[string][]string{"isthmus-agent": agents(t, b.cluster)})
	b.follow(breakage{alert: "IsthmusReportsFail", at: one, breaks: func() { b.restart(one, often) },
		remedy: func() { bind("ClusterRoleBinding", "", "agent", "isthmus-agent-report") }})

	controller.start("--kubeconfig", account("controller"), "--namespace", "isthmus-system", "--lease-duration", "4s", "--http-address", http,
		"--cluster-cidr", "10.250.0.0/24", "--node-mask-ipv4", "25")
	b.operator = newOperator(t, map[string][]string{"isthmus-controller": {target(t, outside, http)}})
	b.follow(breakage{alert: "IsthmusControllerAbsent", log: controller.log, breaks: func() {},
		remedy: func() { bind("RoleBinding", ", namespace: isthmus-system", "controller", "isthmus-controller-lease") }})
	b.follow(breakage{alert: "IsthmusPodRangesExhausted", log: controller.log, breaks: func() {
		for n := range 3 {
			b.must(server.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: more-%d}}", n)))
		}
	}, remedy: func() { b.must(server.Delete(ctx, "{apiVersion: v1, kind: Node, metadata: {name: more-0}}")) }})
}
