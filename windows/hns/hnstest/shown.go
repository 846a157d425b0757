// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// shown returns policies as an answer has them.
func (f *Fake) shown(list []hns.Policy) []hns.Policy {
	list = slices.Clone(list)
	if f.Reorder {
		slices.Reverse(list)
	}
	if !f.Reorder && !f.Respell {
		return list
	}
	for i, p := range list {
		var settings map[string]any
		if json.Unmarshal(p.Settings, &settings) != nil {
			continue
		}
		for _, member := range []string{"LocalAddresses", "RemoteAddresses", "Values"} {
			if text, ok := settings[member].(string); ok {
				settings[member] = f.showList(text)
			}
		}
		for _, member := range []string{"DestinationPrefix", "VIP"} {
			if text, ok := settings[member].(string); ok {
				settings[member] = f.spell(text, false)
			}
		}
		if kind, ok := settings["RuleType"].(string); f.Respell && ok && strings.EqualFold(kind, string(hns.Host)) {
			settings["Priority"] = 100
		}
		if exceptions, ok := settings["Exceptions"].([]any); ok {
			for n, e := range exceptions {
				if text, ok := e.(string); ok {
					exceptions[n] = f.spell(text, false)
				}
			}
		}
		list[i] = hns.MakePolicy(p.Type, settings)
	}
	return list
}

// showList returns a list of addresses as an answer has it.
func (f *Fake) showList(text string) string {
	parts := strings.Split(text, ",")
	if f.Reorder {
		slices.Reverse(parts)
	}
	for i, p := range parts {
		parts[i] = f.spell(p, true)
	}
	return strings.Join(parts, ",")
}

// spell returns an address or a prefix as an answer has it. In lists the length of single addresses is added, and elsewhere it is
// left out.
func (f *Fake) spell(text string, list bool) string {
	if !f.Respell {
		return text
	}
	if a, err := netip.ParseAddr(text); err == nil {
		if text = strings.ToUpper(a.StringExpanded()); list {
			text += "/" + strconv.Itoa(a.BitLen())
		}
		return text
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return text
	}
	if text = strings.ToUpper(p.Addr().StringExpanded()); p.IsSingleIP() && !list {
		return text
	}
	return text + "/" + strconv.Itoa(p.Bits())
}

func (f *Fake) showRoutes(list []hns.Route) {
	for i := range list {
		r := &list[i]
		r.NextHop, r.DestinationPrefix = f.spell(r.NextHop, false), f.spell(r.DestinationPrefix, false)
	}
}

func (f *Fake) showEndpoint(e *hns.Endpoint) hns.Endpoint {
	c := cloneEndpoint(e)
	c.Policies = f.shown(c.Policies)
	for i := range c.IPConfigurations {
		a := &c.IPConfigurations[i]
		a.IPAddress = f.spell(a.IPAddress, false)
	}
	f.showRoutes(c.Routes)
	return c
}

func (f *Fake) showNetwork(n *hns.Network) hns.Network {
	c := cloneNetwork(n)
	c.Policies = f.shown(c.Policies)
	for _, m := range c.Ipams {
		for i := range m.Subnets {
			s := &m.Subnets[i]
			s.IPAddressPrefix = f.spell(s.IPAddressPrefix, false)
			f.showRoutes(s.Routes)
		}
	}
	return c
}

// same compares the settings of two policies, of which the second may be as an answer has shown it.
func (f *Fake) same(stored, named hns.Policy) bool {
	return sameJSON(stored.Settings, named.Settings) || sameJSON(f.shown([]hns.Policy{stored})[0].Settings, named.Settings)
}
