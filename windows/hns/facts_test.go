// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"encoding/json"
	"testing"

	"github.com/isthmus-net/isthmus/test/hnsemu/facts"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestFacts checks the evaluator against every known fact about HNS, as JSON, under every reading
// of undocumented behaviour.
func TestFacts(t *testing.T) {
	for _, f := range facts.All() {
		rules, err := hns.ParseRules(decoded[hns.ACL](t, f.Endpoint()), decoded[hns.SetPolicy](t, f.Network()))
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		k := f.Packet
		p := hns.Packet{Direction: hns.Direction(f.Way), Local: k.To, Remote: k.From, Protocol: uint8(k.Protocol), Port: uint16(k.ToPort), SourcePort: uint16(k.FromPort)}
		if f.Way == facts.Out {
			p.Local, p.Remote = k.From, k.To
		}
		for _, reading := range hns.Readings() {
			if got := rules.Decide(p, reading); got.Allow != f.Pass {
				t.Errorf("%s (%s): %s passes %t by %q under %s, want %t", f.Name, f.Source, k, got.Allow, got.ID, reading, f.Pass)
			}
		}
	}
}

// decoded reads the settings of policies.
func decoded[T any](t *testing.T, list []json.RawMessage) []T {
	t.Helper()
	var all []T
	for _, raw := range list {
		var p hns.Policy
		var settings T
		if err := json.Unmarshal(raw, &p); err != nil {
			t.Fatal(err)
		}
		if err := p.Decode(&settings); err != nil {
			t.Fatal(err)
		}
		all = append(all, settings)
	}
	return all
}
