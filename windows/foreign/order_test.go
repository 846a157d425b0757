// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

func rule(text string) hns.ACL {
	var a hns.ACL
	var port string
	if _, err := fmt.Sscan(text, &a.Direction, &a.Action, &a.Priority, &a.RemoteAddresses, &port); err != nil {
		panic(text + ": " + err.Error())
	}
	a.ID, a.RuleType, a.Protocols = text, hns.Switch, "256"
	if a.RemoteAddresses == "any" {
		a.RemoteAddresses = ""
	}
	if port != "any" {
		a.Protocols, a.LocalPorts = "6", port
	}
	return a
}

func rules(all ...string) (list []hns.ACL) {
	for _, text := range all {
		list = append(list, rule(text))
	}
	return list
}

func texts(list []hns.ACL) string {
	var all []string
	for _, a := range list {
		if a.RuleType == hns.Switch {
			all = append(all, fmt.Sprintf("%s %s %d %s %s", a.Direction, a.Action, a.Priority, a.RemoteAddresses, a.LocalPorts))
		}
	}
	return strings.Join(all, ", ")
}

// TestCompose shows where our rules go beside those of known plugins.
func TestCompose(t *testing.T) {
	own := rules("In Allow 900 172.30.0.13 any", "In Allow 1000 10.0.0.1 80", "In Block 1001 any any", "Out Allow 1002 any any")
	const same = "In Allow 900 172.30.0.13 , In Allow 1000 10.0.0.1 80, In Block 1001  , "
	for name, c := range map[string]struct {
		others []hns.ACL
		want   string
		opens  int
	}{
		"none":                         {nil, same + "Out Allow 1002  ", 0},
		"wire server blocked":          {rules("Out Block 200 168.63.129.16 any"), same + "Out Allow 1002  ", 0},
		"azure-vnet":                   {rules("Out Block 200 168.63.129.16 any", "In Allow 65500 any any", "Out Allow 65500 any any"), same + "Out Allow 1002  ", 0},
		"late block":                   {rules("Out Block 2000 168.63.129.16 any"), same + "Out Allow 2001  ", 0},
		"default deny of others":       {rules("In Block 65500 any any"), "In Block 65500  , Out Allow 1002  ", 1},
		"early allow":                  {rules("In Allow 200 10.9.0.0/16 any"), "In Block 199  , Out Allow 1002  ", 1},
		"allow where policy allows":    {rules("Out Allow 200 10.9.0.0/16 any"), same + "Out Block 201  ", 0},
		"little room before an allow":  {rules("In Block 100 10.9.9.9 any", "In Allow 104 any any"), "In Allow 101 172.30.0.13 , In Allow 102 10.0.0.1 80, In Block 103  , Out Allow 1002  ", 0},
		"too little room before allow": {rules("In Block 100 10.9.9.9 any", "In Allow 103 any any"), "In Block 102  , Out Allow 1002  ", 1},
	} {
		got, opens, err := compose(own, c.others)
		if err != nil || texts(got) != c.want || len(opens) != c.opens {
			t.Errorf("%s: %s, opens %v, %v, want %s", name, texts(got), opens, err, c.want)
		}
		for _, a := range got {
			if !strings.HasPrefix(a.ID, mark) || len(a.ID) > maxID {
				t.Errorf("%s: id %q", name, a.ID)
			}
		}
	}
	if _, _, err := compose(own, rules("In Allow 100 any any")); err == nil || !strings.Contains(err.Error(), "priority 100") {
		t.Errorf("an Allow that precedes everything: %v", err)
	}
}

// TestSplitRefuses checks that an ACL of another program counts only if all that decides it is known: what an unknown one
// passes cannot be denied.
func TestSplitRefuses(t *testing.T) {
	for name, change := range map[string]func(*hns.ACL){
		"action":    func(a *hns.ACL) { a.Action = "Pass" },
		"no action": func(a *hns.ACL) { a.Action = "" },
		"direction": func(a *hns.ACL) { a.Direction = "Both" },
		"rule type": func(a *hns.ACL) { a.RuleType = "Tier" },
	} {
		a := rule("In Block 200 any any")
		a.ID = "theirs"
		if _, err := split([]hns.Policy{a.Policy()}); err != nil {
			t.Fatal(err)
		}
		change(&a)
		if p, err := split([]hns.Policy{a.Policy()}); err == nil || !strings.Contains(err.Error(), `"theirs"`) {
			t.Errorf("%s: %+v, %v", name, p.others, err)
		}
	}
}

// TestTooManyOthers checks that the ACLs of others are bounded.
func TestTooManyOthers(t *testing.T) {
	policies := slices.Repeat([]hns.Policy{rule("In Block 200 any any").Policy()}, maxOthers)
	if _, err := split(policies); err != nil {
		t.Error(err)
	}
	if _, err := split(append(policies, policies[0])); err == nil || !strings.Contains(err.Error(), "more than 1000") {
		t.Errorf("one more: %v", err)
	}
}

// TestComposeKeepsHostRules checks that the Windows Firewall rules of others decide alone.
func TestComposeKeepsHostRules(t *testing.T) {
	host := hns.ACL{ID: "x", Action: hns.Allow, Direction: hns.In, RuleType: hns.Host, Protocols: "6"}
	got, _, err := compose(acl.DenyAll(), []hns.ACL{host})
	if err != nil || len(of(hns.In, hns.Host, got)) != 0 || len(of(hns.Out, hns.Host, got)) != 1 {
		t.Errorf("%v %v", got, err)
	}
}

// TestComposeDeniesWhatEitherDenies compares random lists with both of their parts, under every reading of HNS: no
// packet passes that policy or another program denies. Without an ACL that opens, every other packet passes.
func TestComposeDeniesWhatEitherDenies(t *testing.T) {
	passed, opened := 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		own, others := randomOwn(r), randomOthers(r)
		list, opens, err := compose(own, others)
		if err != nil {
			if !slices.ContainsFunc(others, func(a hns.ACL) bool { return a.Action == hns.Allow && a.Priority <= hns.MinPriority }) {
				t.Fatalf("seed %d: %v\n%v", seed, err, others)
			}
			continue
		}
		together, policy, rest := parse(t, slices.Concat(list, others)), parse(t, own), parse(t, slices.Concat(others, silent(others)))
		for _, reading := range hns.Readings() {
			for _, d := range []hns.Direction{hns.In, hns.Out} {
				for i := range 32 {
					p := hns.Packet{Direction: d, Local: netip.MustParseAddr("10.1.0.9"), Remote: netip.AddrFrom4([4]byte{10, 0, byte(i % 4), byte(i / 16)}), Protocol: 6, Port: uint16(79 + i/4%3)}
					want := policy.Decide(p, hns.Reading{}).Allow && rest.Decide(p, reading).Allow
					got := together.Decide(p, reading).Allow
					over := slices.ContainsFunc(opens, func(a hns.ACL) bool { return a.Direction == d })
					if got && !want || want && !got && !over {
						t.Fatalf("seed %d, %s: %+v passes %t, want %t\nown %s\nothers %s\ntogether %s", seed, reading, p, got, want, texts(own), texts(others), texts(slices.Concat(list, others)))
					}
					if got {
						passed++
					}
					if over {
						opened++
					}
				}
			}
		}
	}
	if passed == 0 || opened == 0 {
		t.Errorf("%d packets passed, %d were denied because of Allows: nothing is shown", passed, opened)
	}
}

// exclusive reports whether others decide alone because policy allows everything: HNS denies what they do not name.
func exclusive(others []hns.ACL, d hns.Direction) bool {
	return slices.ContainsFunc(of(d, hns.Switch, others), func(a hns.ACL) bool { return a.Action == hns.Allow })
}

// silent returns what decides a direction for which others only have Blocks: without policy everything else passes.
func silent(others []hns.ACL) (list []hns.ACL) {
	for _, d := range []hns.Direction{hns.In, hns.Out} {
		if !exclusive(others, d) {
			list = append(list, hns.ACL{Direction: d, Action: hns.Allow, Protocols: "256", RuleType: hns.Switch, Priority: 65501 - 1})
		} else {
			list = append(list, hns.ACL{Direction: d, Action: hns.Block, Protocols: "256", RuleType: hns.Switch, Priority: 65500})
		}
		list = append(list, hns.ACL{Direction: d, Action: hns.Allow, Protocols: "256", RuleType: hns.Host})
	}
	return list
}

func parse(t *testing.T, list []hns.ACL) *hns.Rules {
	t.Helper()
	r, err := hns.ParseRules(list, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func randomRule(r *rand.Rand, d hns.Direction, priority int) hns.ACL {
	a := hns.ACL{ID: fmt.Sprint("rule ", priority), Direction: d, Action: hns.Block, RuleType: hns.Switch, Protocols: "256", Priority: uint16(priority)}
	if r.IntN(2) == 0 {
		a.Action = hns.Allow
	}
	if r.IntN(3) > 0 {
		a.RemoteAddresses = fmt.Sprintf("10.0.%d.0/24", r.IntN(4))
	}
	if r.IntN(3) == 0 {
		a.Protocols, a.LocalPorts = "6", "80"
	}
	return a
}

func randomOwn(r *rand.Rand) (list []hns.ACL) {
	priority := 1000
	for _, d := range []hns.Direction{hns.In, hns.Out} {
		for range r.IntN(3) {
			list = append(list, randomRule(r, d, priority))
			priority++
		}
		list = append(list, hns.ACL{Direction: d, Action: []hns.Action{hns.Allow, hns.Block}[r.IntN(2)], Protocols: "256", RuleType: hns.Switch, Priority: uint16(priority)},
			hns.ACL{Direction: d, Action: hns.Allow, Protocols: "256", RuleType: hns.Host})
		priority++
	}
	return list
}

// randomOthers returns lists like those of plugins: different priorities within a direction, because the order of
// equal ones is not documented.
func randomOthers(r *rand.Rand) (list []hns.ACL) {
	for _, d := range []hns.Direction{hns.In, hns.Out} {
		for _, at := range r.Perm(8)[:r.IntN(4)] {
			list = append(list, randomRule(r, d, []int{100, 101, 103, 200, 1000, 2000, 65400, 65499}[at]))
		}
	}
	return list
}

// FuzzPolicies reads arbitrary lists of HNS.
func FuzzPolicies(f *testing.F) {
	f.Add(`[{"Type":"ACL","Settings":{"Id":"a","Action":"allow","Direction":"in","Priority":200}},{"Type":"OutBoundNAT","Settings":{}}]`)
	f.Add(`[{"Type":"acl","Settings":{"Id":"isthmus x","Action":"Block","Direction":"Out","RuleType":"Switch","Priority":1000}}]`)
	f.Add(`[{"Type":"TierAcl"},{"Type":"ACL","Settings":7}]`)
	f.Fuzz(func(t *testing.T, text string) {
		var policies []hns.Policy
		if json.Unmarshal([]byte(text), &policies) != nil {
			return
		}
		p, err := split(policies)
		if err != nil {
			return
		}
		if len(p.kept)+len(p.own) != len(policies) {
			t.Errorf("%d policies were kept and %d are ours, of %d", len(p.kept), len(p.own), len(policies))
		}
		list, _, err := compose(acl.DenyAll(), p.others)
		if err == nil && len(of(hns.In, hns.Switch, list))+len(of(hns.In, hns.Switch, p.others)) == 0 {
			t.Error("nothing decides ingress")
		}
	})
}

// FuzzRegistry reads arbitrary content of the file.
func FuzzRegistry(f *testing.F) {
	f.Add(`{"endpoints":{"c:eth0":{"hns":"g","netns":"n","pod":{"Namespace":"a","Name":"b"},"ips":["10.0.0.1"]}},"held":{"g":"x"}}`)
	f.Add(`{"endpoints":{"":{}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "r.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := openRegistry(file)
		if r.Endpoints == nil || r.Held == nil || err != nil && len(r.Endpoints) > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if err := r.put("c:eth0", entry{HNS: "g", NetNS: "n", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}); err != nil {
			t.Fatal(err)
		}
		again, err := openRegistry(file)
		if err != nil || len(again.Endpoints) != len(r.Endpoints) {
			t.Errorf("after writing: %+v, %v", again, err)
		}
	})
}
