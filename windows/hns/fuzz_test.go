// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// FuzzPolicies parses any text as the answer of HNS about a network and about an endpoint on it. The result
// must be evaluated without a crash under every reading, and must be the same after encoding and decoding.
func FuzzPolicies(f *testing.F) {
	f.Add([]byte(`{"Policies":[]}`), []byte(`{"Policies":[{"Type":"ACL","Settings":{"Protocols":"6","Action":"Allow","Direction":"In","LocalPorts":"80","RuleType":"Switch","Priority":1000}}]}`))
	f.Add([]byte(`{"Policies":[{"Type":"SetPolicy","Settings":{"Id":"isthmus-0a-v4","Name":"a","PolicyType":"IPSET","Values":"10.0.0.1,10.0.0.2"}}]}`),
		[]byte(`{"Policies":[{"Type":"acl","Settings":{"Action":"block","Direction":"OUT","RemoteAddresses":"isthmus-0a-v4","RuleType":"switch","Priority":100}}]}`))
	f.Add([]byte(`{"Policies":[{"Type":"SETPOLICY","Settings":{"Id":"","PolicyType":"ipset","Values":""}}]}`), []byte(`{"Policies":[{"Type":"ACL"},{"Type":"ACL","Settings":null}]}`))
	f.Add([]byte(`{"Policies":[{"Type":"SetPolicy","Settings":[]}]}`), []byte(`{"Policies":[{"Type":"ACL","Settings":{"Priority":70000}}]}`))
	f.Add([]byte(`{"Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}]}`), []byte(`{"Policies":[{"Type":"ACL","Settings":{"Protocols":"256,6","RemoteAddresses":"any"}}],"IpConfigurations":[{"IpAddress":"fd00::1"}]}`))
	f.Fuzz(func(t *testing.T, network, endpoint []byte) {
		var n hns.Network
		var e hns.Endpoint
		if json.Unmarshal(network, &n) != nil || json.Unmarshal(endpoint, &e) != nil {
			return
		}
		sets, err := n.Sets()
		if err != nil {
			return
		}
		acls, err := e.ACLs()
		if err != nil {
			return
		}
		again := hns.Endpoint{}
		for _, a := range acls {
			again.Policies = append(again.Policies, a.Policy())
		}
		same, err := again.ACLs()
		if err != nil || len(same) != len(acls) {
			t.Fatalf("%d ACLs are read again as %d: %v", len(acls), len(same), err)
		}
		for i := range acls {
			if same[i] != acls[i] || acls[i].Normal() != acls[i].Normal().Normal() {
				t.Errorf("%+v is read again as %+v, normal %+v", acls[i], same[i], acls[i].Normal())
			}
		}
		rules, err := hns.ParseRules(acls, sets)
		if err != nil {
			return
		}
		decide(t, rules)
	})
}

// decide decides a few packets; the parts of a decision must equal the whole.
func decide(t *testing.T, rules *hns.Rules) {
	t.Helper()
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for _, reading := range hns.Readings() {
		for _, a := range []netip.Addr{v4, v6} {
			for _, d := range []hns.Direction{hns.In, hns.Out} {
				p := hns.Packet{Direction: d, Local: a, Remote: a, Protocol: 6, Port: 80, SourcePort: 40000}
				whole := rules.Decide(p, reading)
				if part := rules.Between(d, a, a, reading).Decide(6, 80, 40000); part != whole {
					t.Errorf("%+v: %+v in parts, %+v as a whole (%s)", p, part, whole, reading)
				}
			}
		}
	}
}
