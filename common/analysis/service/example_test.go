// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
)

const shop = `
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  clusterIP: 10.96.0.7
  selector: {app: db}
  ports: [{name: pg, port: 5432, targetPort: postgres}]
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, ports: [{name: postgres, containerPort: 6432}]}]}
status: {podIP: 10.0.1.2}
---
apiVersion: v1
kind: Pod
metadata: {name: db-1, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, ports: [{name: postgres, containerPort: 6432}]}]}
status: {podIP: 10.0.2.2}
`

// The pods and ports to which nodes send connections to a Service. Policies apply to these.
func ExampleServices_Backends() {
	o, _, errs := manifests.Parse("shop.yaml", []byte(shop), manifests.DefaultLimits())
	if len(errs) > 0 {
		fmt.Println(errs)
	}
	services := service.New(o.Snapshot(), o.Services, o.EndpointSlices)
	db := services.Named("shop", "db")
	ports, err := service.Port(db, "pg", nil)
	if err != nil {
		fmt.Println(err)
	}
	for _, port := range ports {
		backends, err := services.Backends(db, port)
		if err != nil {
			fmt.Println(err)
		}
		for _, b := range backends {
			fmt.Println(b.Name, b.Addresses, b.Port)
		}
	}
	// Output:
	// shop/db-0 [10.0.1.2] 6432
	// shop/db-1 [10.0.2.2] 6432
}
