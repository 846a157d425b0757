// SPDX-License-Identifier: Apache-2.0

package apiserver

// policiesOnServices are what flows to Services are judged under.
var policiesOnServices = []struct{ name, manifests string }{
	{"no policy", ""},
	{"egress to the backends' port", egressOf("client", `{to: [{podSelector: {matchLabels: {app: backend}}}], ports: [{port: 8080}]}`)},
	{"egress to the Service's port", egressOf("client", `{to: [{podSelector: {matchLabels: {app: backend}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}`)},
	{"egress to the range of Services", egressOf("client", `{to: [{ipBlock: {cidr: 10.96.0.0/16}}, {ipBlock: {cidr: "fd96::/108"}}]}`)},
	{"egress to one of two backends", egressOf("client", `{to: [{podSelector: {matchLabels: {name: far}}}]}`)},
	{"egress to the first node and the API server", egressOf("client",
		`{to: [{ipBlock: {cidr: 172.30.0.11/32}}, {ipBlock: {cidr: "fd30::11/128"}}, {ipBlock: {cidr: 172.30.0.1/32}}]}`)},
	{"ingress from clients", ingressOf("backend", `{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 8080}, {port: 8080, protocol: SCTP}]}`)},
	{"ingress from one node", ingressOf("backend", `{from: [{ipBlock: {cidr: 172.30.0.12/32}}, {ipBlock: {cidr: "fd30::12/128"}}]}`)},
	{"ingress from outside", ingressOf("backend", `{from: [{ipBlock: {cidr: 172.30.0.1/32}}, {ipBlock: {cidr: "fd30::1/128"}}]}`)},
	{"a backend's own isolation", egressOf("backend", "") + ingressOf("backend", "")},
	{"cluster-wide deny", clusterEgress("Deny", "backend")},
	{"cluster-wide accept", egressOf("client", "") + clusterEgress("Accept", "backend")},
}

func egressOf(app, rule string) string {
	return "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: out-" + app + ", namespace: shop}, " +
		"spec: {podSelector: {matchLabels: {app: " + app + "}}, policyTypes: [Egress], egress: [" + rule + "]}}\n---\n"
}

func ingressOf(app, rule string) string {
	return "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: in-" + app + ", namespace: shop}, " +
		"spec: {podSelector: {matchLabels: {app: " + app + "}}, policyTypes: [Ingress], ingress: [" + rule + "]}}\n---\n"
}

// clusterEgress is about TCP to the far one of the pods of an app, from the
// clients.
func clusterEgress(action, app string) string {
	return `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: shop}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}
  egress:
  - name: far
    action: ` + action + `
    to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: ` + app + `, name: far}}}}]
    protocols: [{tcp: {destinationPort: {number: 8080}}}]
`
}
