// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hostfabric"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// cloudFindings warns of the check of source addresses that clouds make, by the vendor and product that the
// firmware names. The facts are of 2026-11.
func cloudFindings(vendor, product string) []Finding {
	const why = "packets that nodes route for pods have addresses of pods, and the cloud drops them by default; tunnels (--fabric=vxlan, overlay networks) are not affected"
	warn := func(cloud, remedy string) []Finding {
		return []Finding{{"source check", Warning, "this machine is on " + cloud, why, remedy}}
	}
	switch {
	case strings.Contains(vendor, "Amazon"):
		return warn("AWS", "aws ec2 modify-instance-attribute --no-source-dest-check --instance-id ID, unless that is done")
	case strings.Contains(vendor, "Google"):
		return warn("Google Cloud", "create the machine with --can-ip-forward, unless that is done")
	case strings.Contains(vendor, "Microsoft") && strings.Contains(product, "Virtual Machine"):
		return warn("Azure or Hyper-V", "on Azure: az network nic update --ip-forwarding true, and a route table for the pod ranges, unless that is done")
	}
	return nil
}

// hostFindings checks forwarding and MTU of a Windows host. endpoint is the name of the host's endpoint on
// the network; without its interface the host does not route for pods.
func hostFindings(routes []hostroute.Route, interfaces []hostroute.Interface, endpoint string) (found []Finding) {
	type side struct {
		index  uint32
		family hostroute.Family
	}
	crossed, uplink := make(map[side]bool), make(map[uint32]bool)
	for _, r := range routes {
		if r.Protocol == hostroute.NetMgmt && r.Metric == hostfabric.Metric {
			crossed[side{r.Interface, hostroute.FamilyOf(r.Destination.Addr())}] = true
		}
		if r.Destination.Bits() == 0 {
			uplink[r.Interface] = true
		}
	}
	for _, i := range interfaces {
		own := strings.Contains(i.Name, "("+endpoint+")")
		for _, family := range []hostroute.Family{hostroute.IPv4, hostroute.IPv6} {
			// The host's endpoint has an address in each pod range of the node, of which one is for IPv4.
			if !crossed[side{i.Index, family}] && !(own && (family == hostroute.IPv4 || hasGlobal6(i))) {
				continue
			}
			f := Finding{Check: "forwarding", Severity: Good, What: fmt.Sprintf("%s on for interface %q", family, i.Name)}
			if !i.Forwarding[family] {
				f = Finding{"forwarding", Bad, fmt.Sprintf("%s off for interface %q", family, i.Name), "pods of an l2bridge network do not reach other nodes",
					"start isthmus-agent without --fabric=none; if it runs, look for the program that turns forwarding off"}
			}
			found = append(found, f)
		}
		if uplink[i.Index] && i.MTU < 1500 {
			found = append(found, Finding{"MTU", Warning, fmt.Sprintf("%d of interface %q", i.MTU, i.Name), "HNS gives pods of overlay networks 1450 bytes and adds 50 of VXLAN",
				"on overlay networks, set 1500 or more: Set-NetIPInterface -NlMtuBytes"})
		}
	}
	return found
}

// hasGlobal6 reports whether an interface has an IPv6 address besides link-local ones, which every interface has.
func hasGlobal6(i hostroute.Interface) bool {
	return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() })
}
