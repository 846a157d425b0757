// SPDX-License-Identifier: Apache-2.0

package cluster

// dnsAddress is the address of the Service kube-dns, which kubelets configure in pods.
const dnsAddress = "10.96.0.10"

// clusterFirst returns the DNS settings that a kubelet passes for pods of a namespace with the default dnsPolicy.
func clusterFirst(namespace string) map[string][]string {
	return map[string][]string{"servers": {dnsAddress}, "options": {"ndots:5"},
		"searches": {namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local"}}
}
