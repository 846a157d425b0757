// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestFacts checks that the evaluator of this package agrees with every fact.
func TestFacts(t *testing.T) {
	passed := 0
	for _, f := range All() {
		if f.Source == "" {
			t.Errorf("%s: unknown", f.Name)
		}
		port, err := Read(f.Endpoint(), f.Network())
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		if got, err := port.Decide(f.Way, f.Packet); err != nil || got != f.Pass {
			t.Errorf("%s (%s): %s passes %t, %v, want %t", f.Name, f.Source, f.Packet, got, err, f.Pass)
		}
		if f.Pass {
			passed++
		}
	}
	if n := len(All()); passed < n/4 || passed > 3*n/4 {
		t.Errorf("%d of %d facts let a packet pass: the table says too little of one side", passed, n)
	}
}

// TestUnsettled lists cases that no source decides: the evaluator must return an error.
func TestUnsettled(t *testing.T) {
	open, end := rule("open", "Allow", In, 1000, any), rule("end", "Block", In, 65500, any)
	none := `{"Id":"none","Name":"none","PolicyType":"IPSET","Values":""}`
	for name, f := range map[string]Fact{
		"two rules of one priority":         {ACLs: []string{open, rule("shut", "Block", In, 1000, tcp)}, Way: In},
		"no rule of the direction":          {ACLs: []string{open, end}, Way: Out},
		"no Host rule":                      {ACLs: []string{open, end}, Bare: true, Way: In},
		"an empty set":                      {ACLs: []string{rule("a", "Allow", In, 1000, any, member("LocalAddresses", "none")), end}, Sets: []string{none}, Way: In},
		"ports of every protocol":           {ACLs: []string{rule("a", "Allow", In, 1000, any, member("LocalPorts", "80")), end}, Way: In},
		"a set beside addresses":            {ACLs: []string{rule("a", "Allow", In, 1000, any, member("LocalAddresses", "peers,10.0.0.1")), end}, Sets: []string{peers}, Way: In},
		"a set that does not exist":         {ACLs: []string{rule("a", "Allow", In, 1000, any, member("LocalAddresses", "peers")), end}, Way: In},
		"the word any":                      {ACLs: []string{rule("a", "Allow", In, 1000, any, member("RemoteAddresses", "Any")), end}, Way: In},
		"host bits":                         {ACLs: []string{rule("a", "Allow", In, 1000, any, member("RemoteAddresses", "10.0.0.1/8")), end}, Way: In},
		"a priority that HNS does not take": {ACLs: []string{rule("a", "Allow", In, 99, any), end}, Way: In},
		"an action of tiers":                {ACLs: []string{rule("a", "Pass", In, 1000, any), end}, Way: In},
		"an unknown rule type":              {ACLs: []string{strings.Replace(open, `"Switch"`, `"Tier"`, 1), end}, Way: In},
	} {
		port, err := Read(f.Endpoint(), f.Network())
		if err == nil {
			_, err = port.Decide(f.Way, between("10.40.1.4", pod, 6, 80))
		}
		if err == nil {
			t.Errorf("%s: there is an answer", name)
		}
	}
}

// TestOtherPoliciesAreLeftOut reads an endpoint in the form that HNS returns.
func TestOtherPoliciesAreLeftOut(t *testing.T) {
	nat := json.RawMessage(`{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.0.0.0/8"]}}`)
	port, err := Read([]json.RawMessage{nat}, []json.RawMessage{nat})
	if err != nil {
		t.Fatal(err)
	}
	if pass, err := port.Decide(In, between("10.40.1.4", pod, 6, 80)); !pass || err != nil {
		t.Errorf("%t, %v", pass, err)
	}
}
