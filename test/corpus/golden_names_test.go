// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// names maps addresses to the names of their owners, so that golden text is readable and does not
// depend on numbers.
type names struct {
	of  map[netip.Addr]string
	has map[string]int // addresses of each name
}

func newNames(s *model.Snapshot) names {
	n := names{make(map[netip.Addr]string), make(map[string]int)}
	owners := s.Owners()
	for a, node := range owners.Nodes {
		n.of[a] = "node:" + node.Name
	}
	for a, p := range owners.Pods {
		n.of[a] = p.PodID.String()
	}
	for _, name := range n.of {
		n.has[name]++
	}
	return n
}

// list writes addresses and prefixes, sorted: a name if the list has all addresses of that name,
// otherwise name@address.
func (n names) list(members []netip.Prefix) string {
	count := make(map[string]int)
	for _, p := range members {
		if p.IsSingleIP() {
			count[n.of[p.Addr()]]++
		}
	}
	texts := make(map[string]bool)
	for _, p := range members {
		name, ok := n.of[p.Addr()]
		switch {
		case !p.IsSingleIP():
			texts[p.String()] = true
		case !ok:
			texts[p.Addr().String()] = true
		case count[name] == n.has[name]:
			texts[name] = true
		default:
			texts[name+"@"+p.Addr().String()] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(texts)), " ")
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// portSpan is a range of ports that a State does not distinguish. Protocols without ports form one
// span of AnyProtocol.
type portSpan struct {
	model.PortRange
}

// spans divides all ports at the bounds of a State's ranges.
func spans(s *model.State) []portSpan {
	var all []portSpan
	for _, p := range model.PortProtocols {
		next := 0
		add := func(last int, class model.PortClass) {
			if next <= last {
				all = append(all, portSpan{model.PortRange{Protocol: p, First: uint16(next), Last: uint16(last), Class: class}})
				next = last + 1
			}
		}
		for _, r := range s.Policy.Ports {
			if r.Protocol == p {
				add(int(r.First)-1, model.OtherPorts)
				add(int(r.Last), r.Class)
			}
		}
		add(65535, model.OtherPorts)
	}
	return append(all, portSpan{model.PortRange{Protocol: model.AnyProtocol, Class: model.OtherPorts}})
}

// portText writes the spans that are allowed: "all", "none", "TCP 80,443 UDP *",
// or "all but TCP 22" where protocols without ports are allowed.
func portText(all []portSpan, allowed func(portSpan) bool) string {
	other := allowed(all[len(all)-1])
	var parts []string
	every := true // no span differs from other
	for _, p := range model.PortProtocols {
		var ranges []model.PortMatch
		for _, s := range all {
			if s.Protocol != p || allowed(s) == other {
				continue
			}
			if n := len(ranges); n > 0 && int(ranges[n-1].Last)+1 == int(s.First) {
				ranges[n-1].Last = s.Last
			} else {
				ranges = append(ranges, model.PortMatch{Protocol: p, First: s.First, Last: s.Last})
			}
		}
		for i, r := range ranges {
			every = false
			text := r.String()
			if i > 0 {
				text = "," + strings.TrimPrefix(text, p.String()+" ")
			} else if parts != nil {
				text = " " + text
			}
			parts = append(parts, text)
		}
	}
	switch text := strings.Join(parts, ""); {
	case every && other:
		return "all"
	case every:
		return "none"
	case other:
		return "all but " + text
	default:
		return text
	}
}
