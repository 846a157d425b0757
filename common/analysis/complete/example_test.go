// SPDX-License-Identifier: Apache-2.0

package complete_test

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
)

const policyAlone = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web-to-api, namespace: shop}
spec:
  podSelector: {matchLabels: {app: api}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 80}]
`

// A policy without a cluster gets pods that match its selectors, and these get a node and
// addresses.
func Example() {
	o, _, errs := manifests.Parse("policy.yaml", []byte(policyAlone), manifests.DefaultLimits())
	if len(errs) > 0 {
		fmt.Println(errs)
	}
	fmt.Println("pods added:", complete.AddPlaceholders(&o))
	placed := complete.Place(&o)
	fmt.Println("nodes added:", placed.Nodes, "pods bound:", placed.Bound)
	for _, p := range o.Pods {
		fmt.Println(p.PodID, p.Labels, p.Node, p.IPs)
	}
	// Output:
	// pods added: 3
	// nodes added: [assumed-linux] pods bound: 3
	// shop/assumed-1 app=api assumed-linux [100.64.0.10]
	// shop/assumed-2 app=web assumed-linux [100.64.0.11]
	// shop/assumed-bystander  assumed-linux [100.64.0.12]
}
