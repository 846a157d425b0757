// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"testing"
)

// TestLeftOut checks with names of Kubernetes 1.36 which cases the suite network leaves out, and that each omission leaves
// out one of them.
func TestLeftOut(t *testing.T) {
	const networking, services = "[sig-network] Networking ", "[sig-network] Services "
	single := leftOut("4", false)
	used := make(map[string]bool)
	for name, want := range map[string]string{
		services + "should allow pods to hairpin back to themselves through services":                             "",
		networking + "Granular Checks: Services should be able to handle large requests: udp":                     "",
		networking + "should allow creating a Pod with an SCTP HostPort [LinuxOnly] [Serial]":                     "",
		"[sig-network] Netpol API should support creating NetworkPolicy API operations":                           "",
		services + "should serve a basic endpoint from pods [Conformance]":                                        `\[Conformance\]`,
		"[sig-network] Netpol NetworkPolicy between server and client should work [Feature:NetworkPolicy]":        `\[Feature:NetworkPolicy\]`,
		"[sig-network] LoadBalancers [Feature:LoadBalancer] should handle load balancer cleanup finalizer [Slow]": `\[Feature:LoadBalancer\]`,
		"[sig-network] IngressClass [Feature:Ingress] should set default value on new IngressClass [Serial]":      `\[Feature:Ingress\]`,
		networking + "should provide Internet connection for containers [Feature:Networking-IPv4]":                omissions[4].cases,
		"[sig-network] DNS should provide DNS for the cluster [Provider:GCE]":                                     omissions[4].cases,
		networking + "IPerf2 [Feature:Networking-Performance] should run iperf2":                                  `\[Feature:Networking-Performance\]`,
		"[sig-network] [Feature:PerformanceDNS] [Serial] Should answer DNS query":                                 `\[Feature:PerformanceDNS\]`,
		"[sig-network] KubeProxy should update metric [Feature:KubeProxyNFAcct]":                                  `\[Feature:KubeProxyNFAcct\]`,
		"[sig-network] kube-proxy migration [Serial] [Feature:KubeProxyDaemonSetMigration] should":                `\[Feature:KubeProxyDaemonSetMigration\]`,
		services + "should work after restarting kube-proxy [Disruptive]":                                         `\[Disruptive\]`,
		"[sig-network] DNS should support configurable pod resolv.conf":                                           "DNS should support configurable pod resolv.conf",
		"[sig-network] DNS configMap nameserver Change stubDomain should be able to change [Slow] [Serial]":       "DNS configMap nameserver",
		networking + "Granular Checks: Services should function for pod-Service: sctp [Feature:SCTPConnectivity]": onlySCTP.cases,
		"[sig-network] [Feature:IPv6DualStack] should be able to reach pod on ipv4 and ipv6 ip":                   onlyDual.cases,
	} {
		var by string
		for _, o := range single {
			if regexp.MustCompile(o.cases).MatchString(name) {
				by = o.cases
			}
		}
		used[by] = true
		if by != want {
			t.Errorf("%s: left out by %q, want %q", name, by, want)
		}
		conditional := want == onlySCTP.cases || want == onlyDual.cases
		if runs := !regexp.MustCompile(skipNetwork("dual", true)).MatchString(name); runs != (want == "" || conditional) {
			t.Errorf("%s: runs with two IP versions and SCTP: %t", name, runs)
		}
	}
	for _, o := range single {
		if !used[o.cases] || o.why == "" {
			t.Errorf("%s: leaves out no case, or has no reason", o.cases)
		}
	}
}
