// SPDX-License-Identifier: Apache-2.0

package vfp_test

import (
	"encoding/json"
	"net"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/test/hnsemu/facts"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestFacts sends the packet of every fact through the port of a pod. The other
// end is the host's port, which receives packets for unknown destinations.
func TestFacts(t *testing.T) {
	for _, f := range facts.All() {
		var acls []hns.ACL
		var sets []hns.SetPolicy
		settings := func(list []json.RawMessage, each func(hns.Policy) error) {
			t.Helper()
			for _, raw := range list {
				var p hns.Policy
				err := json.Unmarshal(raw, &p)
				if err == nil {
					err = each(p)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		settings(f.Endpoint(), func(p hns.Policy) error { acls = append(acls, hns.ACL{}); return p.Decode(&acls[len(acls)-1]) })
		settings(f.Network(), func(p hns.Policy) error { sets = append(sets, hns.SetPolicy{}); return p.Decode(&sets[len(sets)-1]) })
		rules, err := hns.ParseRules(acls, sets)
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		open, err := hns.ParseRules(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		sw := vfp.New(vfp.Config{Open: func(s vfp.Spec) (vfp.Device, error) { return mailbox{s.ID, &got}, nil }})
		err = sw.Set([]vfp.Spec{
			{ID: "host", Name: "host", Host: true, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.40.3.2/24")}, Rules: open},
			{ID: "pod", Name: "pod", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, Rules: rules,
				Addresses: []netip.Prefix{netip.MustParsePrefix("10.40.3.7/24"), netip.MustParsePrefix("fd00:3::7/64")}},
		})
		if err != nil {
			t.Fatal(err)
		}
		from, to := "host", "pod"
		if f.Way == facts.Out {
			from, to = to, from
		}
		k := f.Packet
		w := wire{src: k.From, dst: k.To, protocol: uint8(k.Protocol), srcPort: uint16(k.FromPort), dstPort: uint16(k.ToPort)}
		sw.Frame(from, w.frame())
		if passes := got == to; passes != f.Pass {
			t.Errorf("%s (%s): %s passes %t, want %t", f.Name, f.Source, k, passes, f.Pass)
		}
	}
}
