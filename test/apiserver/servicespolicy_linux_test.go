// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// judged are policies to test flows to Services under.
type judged struct{ name, manifests string }

// policiesOnServices returns policies that name addresses of two nodes and addresses outside the
// cluster.
func policiesOnServices(first, second, outside []netip.Addr) []judged {
	services := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/108")}
	return []judged{
		{"no policy", ""},
		{"egress to the backends' port", egressOf("client", `{to: [{podSelector: {matchLabels: {app: backend}}}], ports: [{port: 8080}]}`)},
		{"egress to the Service's port", egressOf("client", `{to: [{podSelector: {matchLabels: {app: backend}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}`)},
		{"egress to the range of Services", egressOf("client", "{to: ["+blocks(services...)+"]}")},
		{"egress to one of two backends", egressOf("client", `{to: [{podSelector: {matchLabels: {name: far}}}]}`)},
		{"egress to the first node and the API server", egressOf("client", "{to: ["+blocks(single(append(slices.Clone(first), outside...))...)+"]}")},
		{"ingress from clients", ingressOf("backend", `{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 8080}, {port: 8080, protocol: SCTP}]}`)},
		{"ingress from one node", ingressOf("backend", "{from: ["+blocks(single(second)...)+"]}")},
		{"ingress from outside", ingressOf("backend", "{from: ["+blocks(single(outside)...)+"]}")},
		{"a backend's own isolation", egressOf("backend", "") + ingressOf("backend", "")},
		{"cluster-wide deny", clusterEgress("Deny", "backend")},
		{"cluster-wide accept", egressOf("client", "") + clusterEgress("Accept", "backend")},
	}
}

func single(addresses []netip.Addr) (all []netip.Prefix) {
	for _, a := range addresses {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// blocks returns peers for prefixes.
func blocks(prefixes ...netip.Prefix) string {
	var b strings.Builder
	for _, p := range prefixes {
		fmt.Fprintf(&b, "{ipBlock: {cidr: %q}},", p)
	}
	return b.String()
}

func egressOf(app, rule string) string {
	return "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: out-" + app + ", namespace: shop}, " +
		"spec: {podSelector: {matchLabels: {app: " + app + "}}, policyTypes: [Egress], egress: [" + rule + "]}}\n---\n"
}

func ingressOf(app, rule string) string {
	return "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: in-" + app + ", namespace: shop}, " +
		"spec: {podSelector: {matchLabels: {app: " + app + "}}, policyTypes: [Ingress], ingress: [" + rule + "]}}\n---\n"
}

// clusterEgress returns a policy for TCP from the clients to the pod of an app on the second node.
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
