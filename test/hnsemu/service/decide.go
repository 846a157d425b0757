// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// decide evaluates the ACLs of an endpoint for the first packet of a flow, under every reading of
// what HNS leaves undocumented. It is an error if the readings disagree. It waits for a call that changes objects, because
// packets meet the change only at its end.
func (s *Service) decide(q url.Values) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	remote, err := netip.ParseAddr(q.Get("remote"))
	if err != nil {
		return "", err
	}
	protocol, err := strconv.ParseUint(q.Get("protocol"), 10, 8)
	if err != nil {
		return "", err
	}
	port, err := strconv.ParseUint(q.Get("port"), 10, 16)
	if err != nil {
		return "", err
	}
	name := q.Get("endpoint")
	rules, err := s.config.HNS.Rules(name)
	if err != nil {
		return "", err
	}
	p := hns.Packet{Direction: hns.Direction(q.Get("direction")), Remote: remote, Protocol: uint8(protocol), Port: uint16(port), SourcePort: 40000}
	if p.Direction != hns.In && p.Direction != hns.Out {
		return "", fmt.Errorf("direction %q: want In or Out", p.Direction)
	}
	if local, err := netip.ParseAddr(q.Get("local")); err == nil {
		p.Local = local
	}
	first := rules.Decide(p, hns.Reading{})
	for _, reading := range hns.Readings() {
		if out := rules.Decide(p, reading); out.Allow != first.Allow {
			return "", fmt.Errorf("endpoint %s: allow=%t, but allow=%t (rule %q) if hns is read as %s", name, first.Allow, out.Allow, out.ID, reading)
		}
	}
	if first.Allow {
		return string(hns.Allow), nil
	}
	return string(hns.Block), nil
}
