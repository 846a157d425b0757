// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// renderACLs writes the ACLs of every table of the first node that restricts a pod, for an HNS
// without sets and IPv6, and for one with both. It writes sets as their members.
func renderACLs(c *engine.Cluster) (string, error) {
	n := newNames(c.Snapshot)
	var out lines
	node, ok := firstRestricted(c)
	if !ok {
		return "", nil
	}
	s := c.States[node]
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		o := acl.Options{Sets: profile.Supports(hns.Sets), NoIPv6: !profile.Supports(hns.DualStack)}.Defaults()
		lowering := acl.Lower(s, o, "HNS "+profile.String())
		for _, g := range groups(s) {
			if g.open(s) {
				continue
			}
			out.add("HNS ", profile.String(), " ", node, " ", strings.Join(g.pods, " "))
			for _, a := range lowering.Lists[g.endpoints[0]] {
				text, err := n.acl(a, &lowering.Ruleset)
				if err != nil {
					return "", err
				}
				out.add("  ", text)
			}
		}
	}
	return out.String(), nil
}

// acl writes one ACL: "1000 in allow TCP 80 from x/a".
func (n names) acl(a hns.ACL, p *acl.Ruleset) (string, error) {
	text := fmt.Sprintf("%d %s %s", a.Priority, a.Direction, a.Action)
	if a.RuleType == hns.Host {
		text = fmt.Sprintf("host %s %s", a.Direction, a.Action)
	}
	text = strings.ToLower(text)
	protocols, err := hns.ParseProtocols(a.Protocols)
	if err != nil {
		return "", err
	}
	var list []string
	for _, number := range protocols {
		list = append(list, model.Protocol(number).String())
	}
	text += " " + cmp.Or(strings.Join(list, ","), "any")
	for _, part := range []struct{ word, ports, addresses string }{
		{"local", a.LocalPorts, a.LocalAddresses}, {"remote", a.RemotePorts, a.RemoteAddresses},
	} {
		if part.ports != "" {
			text += " " + part.word + " ports " + part.ports
		}
		if part.addresses == "" {
			continue
		}
		who, err := n.addresses(part.addresses, p)
		if err != nil {
			return "", err
		}
		text += " " + part.word + " " + who
	}
	return text, nil
}

func (n names) addresses(text string, p *acl.Ruleset) (string, error) {
	if acl.OwnSet(text) {
		var members []netip.Prefix
		for _, a := range p.Sets[text] {
			members = append(members, single(a))
		}
		return "set(" + n.family(members) + ")", nil
	}
	list, err := hns.ParseAddresses(text)
	if err != nil {
		return "", err
	}
	return n.family(list.Prefixes), nil
}

// family is list for members of one IP version: a name then stands for the addresses of that
// version.
func (n names) family(members []netip.Prefix) string {
	var texts []string
	for _, p := range members {
		name, ok := n.of[p.Addr()]
		if !p.IsSingleIP() || !ok {
			name = p.String()
		} else if p.Addr().Is6() {
			name += "(6)"
		}
		texts = append(texts, name)
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}
