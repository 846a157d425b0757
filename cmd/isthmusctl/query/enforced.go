// SPDX-License-Identifier: Apache-2.0

package query

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// hnsVersion is a version of HNS to lower for.
type hnsVersion = hns.Version

// parseVersions reads versions such as 13.3; an empty list means all tested versions.
func parseVersions(texts []string) ([]hnsVersion, error) {
	if len(texts) == 0 {
		return hns.Profiles(), nil
	}
	var all []hnsVersion
	for _, t := range texts {
		major, minor, found := strings.Cut(t, ".")
		m, err1 := strconv.ParseUint(major, 10, 16)
		n, err2 := strconv.ParseUint(minor, 10, 16)
		v := hns.Version{Major: int(m), Minor: int(n)}
		if !found || err1 != nil || err2 != nil {
			return nil, cli.Usagef("--hns %q: give a version such as %s", t, versionsText(hns.Profiles()))
		}
		if !v.Supports(hns.Schema2API) {
			return nil, cli.Usagef("--hns %q: older than 9.2, the oldest that Isthmus supports", t)
		}
		all = append(all, v)
	}
	return all, nil
}

func versionsText(versions []hnsVersion) string {
	parts := make([]string, len(versions))
	for i, v := range versions {
		parts[i] = v.String()
	}
	return strings.Join(parts, ", ")
}

// aclOptions returns the options that the agent uses on a version of HNS.
func aclOptions(v hnsVersion) acl.Options {
	return acl.Options{Sets: v.Supports(hns.Sets), NoIPv6: !v.Supports(hns.DualStack)}.Defaults()
}

// platformName is the name of a version of HNS in reports.
func platformName(v hnsVersion) string { return "HNS " + v.String() }

// localEndpoints are the pods of a node that policies apply to.
func localEndpoints(s *model.Snapshot, node string) map[model.EndpointID]compile.Endpoint {
	local := make(map[model.EndpointID]compile.Endpoint)
	for _, p := range s.Pods.All() {
		if p.Node == node && p.Policed() && len(p.IPs) > 0 {
			local[engine.EndpointOf(p)] = compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
		}
	}
	return local
}

// compileNode computes the state that a node should enforce for all of its pods.
func compileNode(s *model.Snapshot, node string) (*model.State, []model.Unsupported) {
	return compile.Once(compile.Input{Snapshot: s, Node: node, Endpoints: localEndpoints(s, node)})
}

// checkEnforcement evaluates what the pod's node would install: the tables on Linux, or the
// ACLs on Windows under every reading of HNS.
func checkEnforcement(s *model.Snapshot, pod *model.Pod, d model.Direction, remote netip.Addr, f model.Flow, versions []hnsVersion) []explain.Enforcement {
	state, unsupported := compileNode(s, pod.Node)
	id := engine.EndpointOf(pod)
	want := policy.NewEvaluator(s).Endpoint(pod, d, remote, f.Protocol, f.Port).Verdict
	table := state.Policy.Decide(id, d, remote, f.Protocol, f.Port).Verdict
	check := func(platform string, got model.Verdict, reported []model.Unsupported) explain.Enforcement {
		c := explain.Enforcement{Platform: platform, Verdict: got.String(), Exact: got == want}
		if !c.Exact {
			c.Reasons = []string{}
			for _, u := range reported {
				if u.Rule >= 0 && u.Direction != d {
					continue
				}
				c.Reasons = append(c.Reasons, u.Construct+": "+u.Reason)
			}
		}
		return c
	}
	if complete.OSOf(s, pod) != model.Windows {
		return []explain.Enforcement{check(platformLinux, table, unsupported)}
	}
	var all []explain.Enforcement
	for _, v := range versions {
		lowering := acl.Lower(state, aclOptions(v), platformName(v))
		got, reason := decideACLs(&lowering.Ruleset, id, pod, d, remote, f)
		c := check(platformName(v), got, slices.Concat(unsupported, lowering.Unsupported))
		if reason != "" {
			c.Exact, c.Reasons = false, append(c.Reasons, reason)
		}
		all = append(all, c)
	}
	return all
}

// Enforced returns what the nodes of a cluster would install for a flow: the tables on Linux, and on Windows the ACLs for
// each tested version of HNS.
func Enforced(s *model.Snapshot, f model.Flow) explain.Enforced {
	return enforcedBy(s, f, hns.Profiles())
}

// enforcedBy is Enforced for some versions of HNS.
func enforcedBy(s *model.Snapshot, f model.Flow, versions []hnsVersion) explain.Enforced {
	return func(pod *model.Pod, d model.Direction, remote netip.Addr) []explain.Enforcement {
		return checkEnforcement(s, pod, d, remote, f, versions)
	}
}

// decideACLs evaluates the ACLs of an endpoint. If readings of HNS disagree, it reports that
// as a reason and counts the flow as denied.
func decideACLs(p *acl.Ruleset, id model.EndpointID, pod *model.Pod, d model.Direction, remote netip.Addr, f model.Flow) (model.Verdict, string) {
	if slices.Contains(pod.IPs, remote) {
		return model.Allow, "" // the packet never leaves the network compartment
	}
	rules, err := p.Rules(id)
	if err != nil {
		return model.Deny, err.Error()
	}
	packet := hns.Packet{Direction: acl.PacketDirection(d), Local: f.Src, Remote: remote, Protocol: uint8(f.Protocol), Port: f.Port, SourcePort: 40000}
	if d == model.Ingress {
		packet.Local = f.Dst
	}
	allowed := 0
	readings := hns.Readings()
	for _, r := range readings {
		if rules.Decide(packet, r).Allow {
			allowed++
		}
	}
	switch allowed {
	case 0:
		return model.Deny, ""
	case len(readings):
		return model.Allow, ""
	}
	return model.Deny, "the verdict depends on what HNS leaves undocumented"
}
