// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// EndpointStats implements Meter.
func (f *Fake) EndpointStats(_ context.Context, id string) (s hns.Stats, err error) {
	const op = "EndpointStats"
	err = f.do(op, id, nil, func() error {
		e := f.endpoint(id)
		if e == nil {
			return hns.NewError(op, hns.CodeEndpointNotFound, "The endpoint was not found.")
		}
		s = *f.stats[e.ID]
		return nil
	})
	return s, err
}

// Send sends the first packet of a flow through the port of the named endpoint and counts it. p.Local may
// be empty. The error is for impossible packets: the endpoint does not exist, or is not attached.
func (f *Fake) Send(name string, p hns.Packet, reading hns.Reading) (hns.Outcome, error) {
	rules, err := f.Rules(name)
	if err != nil {
		return hns.Outcome{}, err
	}
	out := rules.Decide(p, reading)
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.port(name); e != nil {
		count(f.stats[e.ID], p.Direction, out.Allow)
	}
	return out, nil
}

// Rules returns the rules in force at the port of the named endpoint, for deciding many packets without
// counting them. It returns the same errors as Send.
func (f *Fake) Rules(name string) (*hns.Rules, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.port(name)
	if e == nil {
		return nil, fmt.Errorf("endpoint %q does not exist", name)
	}
	if e.HostComputeNamespace == "" && !slices.Contains(f.host, e.ID) {
		return nil, fmt.Errorf("endpoint %q is not attached", name)
	}
	return f.rules(e)
}

// rules parses the ACLs in force at an endpoint's port.
func (f *Fake) rules(e *hns.Endpoint) (*hns.Rules, error) {
	if slices.ContainsFunc(e.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeTierACL) }) {
		return nil, fmt.Errorf("endpoint %q has tiers of ACLs, whose meaning is not known well enough to decide packets", e.Name)
	}
	acls, err := f.listInForce(e)
	if err != nil {
		return nil, err
	}
	sets, err := f.setsInForce(e.HostComputeNetwork, e.ID, acls)
	if err != nil {
		return nil, err
	}
	return hns.ParseRules(layered(f.misread(acls)), sets)
}

// port returns the named endpoint if packets can reach it.
func (f *Fake) port(name string) *hns.Endpoint {
	return find(f.endpoints, func(e *hns.Endpoint) bool { return e.Name == name && !e.Remote() })
}

func count(s *hns.Stats, d hns.Direction, passed bool) {
	switch {
	case d == hns.In && passed:
		s.PacketsReceived++
	case d == hns.In:
		s.DroppedIn++
	case passed:
		s.PacketsSent++
	default:
		s.DroppedOut++
	}
}

// Dump returns all stored objects as text in a canonical order and without generated identifiers.
func (f *Fake) Dump() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	byName := func(a, b *hns.Network) int { return strings.Compare(a.Name, b.Name) }
	for _, n := range slices.SortedFunc(slices.Values(f.networks), byName) {
		fmt.Fprintf(&b, "network %s %s flags=%d\n", n.Name, n.Type, n.Flags)
		for _, s := range n.Subnets() {
			fmt.Fprintf(&b, "  subnet %s routes=%v%s\n", s.IPAddressPrefix, s.Routes, dumpPolicies(s.Policies))
		}
		var lines []string
		for _, p := range n.Policies {
			lines = append(lines, fmt.Sprintf("  %s %s\n", p.Type, p.Settings))
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
		f.dumpEndpoints(&b, n)
	}
	for i, n := range f.namespaces {
		var names []string
		for _, id := range n.EndpointIDs() {
			names = append(names, f.endpoint(id).Name)
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "namespace %d %v\n", i, names)
	}
	return b.String()
}

func (f *Fake) dumpEndpoints(b *strings.Builder, n *hns.Network) {
	byName := func(a, b *hns.Endpoint) int { return strings.Compare(a.Name, b.Name) }
	for _, e := range slices.SortedStableFunc(slices.Values(f.endpoints), byName) {
		if !hns.SameID(e.HostComputeNetwork, n.ID) {
			continue
		}
		where := "detached"
		if slices.Contains(f.host, e.ID) {
			where = "on host"
		} else if e.HostComputeNamespace != "" {
			where = fmt.Sprintf("in namespace %d", slices.IndexFunc(f.namespaces, func(n *hns.Namespace) bool { return hns.SameID(n.ID, e.HostComputeNamespace) }))
		}
		fmt.Fprintf(b, "  endpoint %s %s %v flags=%d %s\n", e.Name, e.MACAddress, e.IPConfigurations, e.Flags, where)
		if !e.DNS.IsZero() {
			text, _ := json.Marshal(e.DNS)
			fmt.Fprintf(b, "    Dns %s\n", text)
		}
		var lines []string
		for _, p := range e.Policies {
			if !p.Is(hns.TypeACL) {
				lines = append(lines, fmt.Sprintf("    %s %s\n", p.Type, p.Settings))
			}
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
		acls, _ := e.ACLs()
		b.WriteString(hns.FormatACLs("    ", acls))
	}
}

func dumpPolicies(policies []hns.Policy) string {
	var text string
	for _, p := range policies {
		text += fmt.Sprintf(" %s %s", p.Type, p.Settings)
	}
	return text
}
