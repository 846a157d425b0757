// SPDX-License-Identifier: Apache-2.0

package lint_test

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/lint"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

const shop = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: c}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web-to-api, namespace: shop}
spec:
  podSelector: {matchLabels: {app: api}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: metrics}]
`

// A policy that selects no pod, with a port name that no pod has, on a platform that enforces every
// construct.
func Example() {
	o, _, errs := manifests.Parse("shop.yaml", []byte(shop), manifests.DefaultLimits())
	if len(errs) > 0 {
		fmt.Println(errs)
	}
	s := o.Snapshot()
	linux := lint.Platform{Name: "linux", Features: model.Features{OS: model.Linux, IPv6: true}}
	r := lint.NewCluster(s, s, o.Namespaces).Report([]lint.Platform{linux}, nil)
	for _, f := range r.Findings {
		fmt.Println(f)
	}
	for _, c := range r.Constructs {
		fmt.Println(c.Policy, c.Direction, "rule", c.Rule, c.Construct, c.On)
	}
	// Output:
	// warning NetworkPolicy shop/web-to-api: selects-no-pod: its selector (namespace shop pods{app=api}) matches no pod: it applies to nothing
	// warning NetworkPolicy shop/web-to-api ingress rule 0: unresolved-port: no destination pod of the rule has a port named TCP metrics: it matches nothing
	// NetworkPolicy shop/web-to-api ingress rule 0 named port [{linux exact }]
	// NetworkPolicy shop/web-to-api ingress rule 0 selector [{linux exact }]
}
