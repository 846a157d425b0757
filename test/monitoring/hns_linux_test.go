// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
)

// portal is a pod of a Windows node, under a policy.
const portal = `
apiVersion: v1
kind: Pod
metadata: {name: portal, namespace: shop, labels: {app: portal}}
spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: main}]}
`

// TestRunbooksOfWindows breaks an emulated Windows node. Its HNS refuses calls, and answers late.
func TestRunbooksOfWindows(t *testing.T) {
	b := startBroken(t, portal, cluster.Config{Windows: 1, WindowsFlags: []string{often}})
	b.operator = newOperator(t, map[string][]string{"isthmus-agent": agents(t, b.cluster)})
	win, ctx := b.cluster.Nodes[0], context.Background()
	fails := func(f fault.Fault) func() { return func() { b.must(win.Fault(ctx, f)) } }
	calm := func() { b.must(win.EndFaults(ctx)) }
	refused := fault.Fault{Op: "Enumerate.endpoint", Code: 0x80070005, Text: "access is denied"}
	var stop func()
	for _, c := range []breakage{
		{alert: "IsthmusHNSErrors", at: win, breaks: fails(refused), remedy: calm},
		{alert: "IsthmusAuditStale", at: win, breaks: fails(refused), remedy: calm},
		{alert: "IsthmusCountersStale", at: win, breaks: fails(refused), remedy: calm},
		{alert: "IsthmusEnforcementSlow", at: win, breaks: func() {
			b.must(win.Fault(ctx, fault.Fault{Op: "Modify.endpoint", Delay: 6 * time.Second}))
			port := 7000
			stop = b.repeat(time.Second, func() error { port++; return b.cluster.Manifests.Put("change", isolate(port)) })
		}, remedy: func() { stop(); calm() }},
	} {
		b.follow(c)
	}
}

// isolate is a policy that allows one port.
func isolate(port int) string {
	return fmt.Sprintf("kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: change, namespace: shop}\nspec: {podSelector: {}, ingress: [{ports: [{port: %d}]}]}\n", port)
}
