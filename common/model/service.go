// SPDX-License-Identifier: Apache-2.0

package model

// Service is what policies have to do with a Service: by which ways clients outside of
// the cluster reach its pods, and whether nodes hide who they are.
type Service struct {
	Namespace, Name string
	// Pods selects the pods behind it, in its namespace; nothing if the Service has no
	// selector.
	Pods Selector
	// External names how clients outside of the cluster reach it: "NodePort",
	// "LoadBalancer" or "externalIPs"; empty if they do not.
	External string
	// KeepsClients says that packets go to pods of the node that they arrive at only,
	// with the address of the client (externalTrafficPolicy: Local).
	KeepsClients bool
}
