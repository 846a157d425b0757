// SPDX-License-Identifier: Apache-2.0

package cause_test

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/cause"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

const pods = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: c}]}
status: {podIP: 10.0.1.3}
---
apiVersion: v1
kind: Pod
metadata: {name: api, namespace: shop, labels: {app: api}}
spec: {containers: [{name: c}]}
status: {podIP: 10.0.1.2}
---
`

const isolateAPI = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolate-api, namespace: shop}
spec: {podSelector: {matchLabels: {app: api}}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: observe-web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{}]}
`

// Two policies are added. Only one of them changes a verdict.
func ExampleFinder_Split() {
	was, is := read(pods), read(pods+isolateAPI)
	p := reach.New(was, is)
	f := cause.New(p, was, is)
	for _, change := range p.Changes() {
		for _, part := range f.Split(change) {
			if len(part.From[0].Pods) == 0 {
				continue // from outside the cluster
			}
			fmt.Printf("%s -> %s: %s, now %s\n", part.From[0].Pods[0].ID, part.To[0].Pods[0].ID, part.Was, part.Is)
			for _, e := range part.Edits {
				fmt.Println(" ", e, e.Origin())
			}
		}
	}
	// Output:
	// shop/web -> shop/api: allow, now deny
	//   added NetworkPolicy shop/isolate-api
}

func read(text string) *model.Snapshot {
	o, _, errs := manifests.Parse("shop.yaml", []byte(text), manifests.DefaultLimits())
	if len(errs) > 0 {
		panic(errs)
	}
	return o.Snapshot()
}
