// SPDX-License-Identifier: Apache-2.0

package rulecounters_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/rulecounters"
)

const (
	pod      = model.EndpointID("web:eth0")
	endpoint = "B5F4E943-756D-4EE8-A70C-DF5AD7C74715"
	port     = "1666B12E-5204-46FB-A42E-1295AE2DF63A"
)

// outputs names the directory of the outputs of vfpctrl; then this test is that program.
const outputs = "VFPCTRL_OUTPUTS"

func TestMain(m *testing.M) {
	dir := os.Getenv(outputs)
	if dir == "" {
		os.Exit(m.Run())
	}
	text, err := os.ReadFile(filepath.Join(dir, file(os.Args[1:])))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = os.Stdout.Write(text)
}

func file(args []string) string { return strings.ReplaceAll(strings.Join(args, " "), "/", "-") }

// lab is a host with one pod, whose VFP counts packets.
type lab struct {
	t       *testing.T
	dir     string
	sampler *rulecounters.Sampler
	state   *model.State
	rules   *acl.Ruleset
	// counted is what VFP has counted, by place of the ACL; want what rules of policy have decided, by cause.
	counted map[int]uint64
	want    map[string]uint64
	byName  bool // the ACL id is the Name of a VFP rule
}

var (
	peers  = []netip.Addr{netip.MustParseAddr("10.0.2.6"), netip.MustParseAddr("10.0.2.7"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("fd00:2::6"), netip.MustParseAddr("fd00:3::1")}
	origin = model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "web", UID: "1"}
)

// makeState isolates the pod for ingress: rule 0 accepts TCP 80 of class 1, rule 1 UDP 53 of class 2. An admin rule
// denies egress to class 1. With merged, class 2 may also use TCP 80, by rule 1: one ACL stands for both rules.
func makeState(merged bool) *model.State {
	isolated := model.Decision{Cause: &model.Cause{Reason: model.ReasonIsolated, Origin: origin}}
	rule := func(n int) model.Decision {
		return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonRule, Origin: origin, Rule: n, Meaning: uint64(n + 10)}}
	}
	guard := model.Decision{Cause: &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}, Direction: model.Egress, Meaning: 7}}
	allow := model.Decision{Verdict: model.Allow, Cause: &model.Cause{Direction: model.Egress}}
	row := func(d ...model.Decision) *model.Row { return &model.Row{Cells: d} }
	second := row(isolated, isolated, rule(1))
	if merged {
		second = row(isolated, rule(1), rule(1))
	}
	table := &model.Table{ID: model.TableID{1}, Sides: [2]model.Side{
		model.Ingress: {Default: row(isolated), Rows: immutable.MakeMap(map[model.PeerClass]*model.Row{1: row(isolated, rule(0), isolated), 2: second})},
		model.Egress:  {Default: row(allow), Rows: immutable.MakeMap(map[model.PeerClass]*model.Row{1: row(guard)})},
	}}
	return &model.State{Policy: model.PolicyState{Tables: map[model.TableID]*model.Table{{1}: table},
		Ports:     []model.PortRange{{Protocol: model.TCP, First: 80, Last: 80, Class: 1}, {Protocol: model.UDP, First: 53, Last: 53, Class: 2}},
		Addresses: immutable.MakeMap(map[netip.Addr]model.PeerClass{peers[0]: 1, peers[1]: 2, peers[3]: 1}),
		Endpoints: map[model.EndpointID]model.EndpointState{pod: {Pod: model.PodID{Namespace: "shop", Name: "web"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.1.5")}, Table: model.TableID{1}}}}}
}

func newLab(t *testing.T) *lab {
	x := &lab{t: t, dir: t.TempDir(), counted: make(map[int]uint64), want: make(map[string]uint64)}
	t.Setenv(outputs, x.dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x.sampler = rulecounters.New(rulecounters.Config{Run: rulecounters.Command(self), Log: slog.New(slog.DiscardHandler)})
	x.apply(makeState(false))
	return x
}

// apply puts a State in force.
func (x *lab) apply(s *model.State) {
	l := acl.Lower(s, acl.Options{}.Defaults(), "test")
	x.sampler.Begin(s)
	if x.rules == nil || !acl.Equal(x.rules.Lists[pod], l.Lists[pod]) {
		x.sampler.Writing(pod)
		x.counted = make(map[int]uint64) // VFP begins again
	}
	x.state, x.rules = s, &l.Ruleset
	x.installed()
}

func (x *lab) installed() {
	x.sampler.Installed(map[model.EndpointID]rulecounters.Installed{pod: {GUID: endpoint, List: x.rules.Lists[pod], Sets: x.rules.Sets, Options: acl.Options{}.Defaults()}})
}

// send sends random packets. With assigned, they are wanted in the counts of the rules that the State decides by.
func (x *lab) send(n int, assigned bool) {
	rules, err := x.rules.Rules(pod)
	if err != nil {
		x.t.Fatal(err)
	}
	for range n {
		d := model.Directions[rand.IntN(2)]
		remote, protocol, to := peers[rand.IntN(len(peers))], []model.Protocol{model.TCP, model.UDP, model.ICMP}[rand.IntN(3)], uint16(0)
		if protocol.HasPorts() {
			to = []uint16{80, 53, 443}[rand.IntN(3)]
		}
		out := rules.Decide(hns.Packet{Direction: acl.PacketDirection(d), Remote: remote, Protocol: uint8(protocol), Port: to}, hns.Reading{})
		x.counted[out.Index]++
		if assigned {
			by := x.state.Policy.Decide(pod, d, remote, protocol, to)
			x.want[fmt.Sprint(by.Verdict, " ", by.Cause)]++
		}
	}
}

// pass writes what vfpctrl prints, and reads it.
func (x *lab) pass() {
	x.print([]string{"/list-vmswitch-port", "/format", "1"}, map[string]any{"Ports": []any{
		map[string]any{"Id": "ExternalPort", "Name": "F2A203DC-F7AB-4354-B969-8F60C466685A"}, map[string]any{"Id": strings.ToLower(endpoint), "Name": port, "MacAddress": "00155D"}}})
	var rules []any
	for i, a := range x.rules.Lists[pod] {
		id, name := a.ID, "friendly"
		if x.byName {
			id, name = "", a.ID
		}
		if a.Normal().RuleType == hns.Switch {
			rules = append(rules, map[string]any{"Id": id, "Name": name, "Priority": a.Priority, "$type": "?", "InformationArray": []any{
				map[string]any{"RuleCounters": map[string]any{"MatchedPackets": x.counted[i], "DroppedPackets": 5, "PendingPackets": 0, "DroppedFlows": 1}}}})
		}
	}
	x.print([]string{"/port", port, "/get-rule-counter", "/format", "1"}, map[string]any{"Layers": []any{
		map[string]any{"Name": "VNET_PA_ROUTE_LAYER", "Groups": []any{map[string]any{"Name": "other", "Rules": []any{map[string]any{"Id": "x"}}}}},
		map[string]any{"Name": "ACL_ENDPOINT_LAYER", "Groups": []any{map[string]any{"Name": "all", "Rules": rules}}}}})
	x.sampler.Pass(context.Background())
}

func (x *lab) print(args []string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		x.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(x.dir, file(args)), text, 0o600); err != nil {
		x.t.Fatal(err)
	}
}

// check compares the counts of rules with what was sent.
func (x *lab) check(others uint64) dataplane.CauseCounts {
	x.t.Helper()
	c, err := x.sampler.CauseCounts()
	if err != nil {
		x.t.Fatal(err)
	}
	got := make(map[string]uint64)
	for _, n := range c.Causes {
		if n.Flows > 0 {
			got[fmt.Sprint(n.Verdict, " ", n.Cause)] += n.Flows
		}
	}
	var rest uint64
	for _, d := range model.Directions {
		rest += c.Others[d][0] + c.Others[d][1] + c.Past[d][0] + c.Past[d][1]
	}
	if fmt.Sprint(got) != fmt.Sprint(x.want) || rest != others || !c.Packets {
		x.t.Errorf("counted %v and %d others, want %v and %d", got, rest, x.want, others)
	}
	return c
}

// TestCounts: the packets of each rule are those that the State decides by it.
func TestCounts(t *testing.T) {
	for _, byName := range []bool{false, true} {
		x := newLab(t)
		x.byName = byName
		x.send(100, false) // from before the first reading
		x.pass()
		x.send(1000, true)
		x.pass()
		x.send(500, true)
		x.pass()
		c := x.check(0)
		if len(c.Shared) != 0 || len(x.want) != 5 {
			t.Errorf("shared %v, causes %v", c.Shared, x.want)
		}
		x.counted = make(map[int]uint64) // VFP begins again, with the same list
		x.pass()
		x.send(50, true)
		x.pass()
		x.check(0)
	}
}

// TestChange: packets of an interval with a write are of no rule, and those before and after it are counted.
func TestChange(t *testing.T) {
	x := newLab(t)
	x.pass()
	x.send(300, true)
	x.pass()
	x.sampler.Writing(pod)
	x.send(30, false)
	x.pass() // reads nothing, and forgets nothing
	x.send(40, false)
	x.installed()
	x.pass()
	x.check(70)
	x.send(200, true)
	x.pass()
	x.check(70)
}

// TestSeveralRules: an ACL that stands for another rule under a later State counts for neither.
func TestSeveralRules(t *testing.T) {
	x := newLab(t)
	x.pass()
	// The same list, under a State in which rule 0 says something else.
	s := makeState(false)
	changed := *s.Policy.Tables[model.TableID{1}].Sides[model.Ingress].Row(1).Cells[1].Cause
	changed.Meaning = 99
	s.Policy.Tables[model.TableID{1}].Sides[model.Ingress].Row(1).Cells[1].Cause = &changed
	x.send(400, false)
	before := x.counted
	x.apply(s)
	if len(x.counted) == 0 {
		t.Fatal("the list was written")
	}
	x.pass()
	c, err := x.sampler.CauseCounts()
	if err != nil {
		t.Fatal(err)
	}
	var one uint64
	for i, n := range before {
		if a := x.rules.Lists[pod][i]; a.Direction == hns.In && a.Action == hns.Allow && a.LocalPorts == "80" {
			one += n
		}
	}
	if one == 0 || c.Others[model.Ingress][model.Allow] != one || !slices.ContainsFunc(c.Shared, func(d model.Decision) bool { return d.Cause.Meaning == 99 }) {
		t.Errorf("%d packets of rule 0: others %v, shared %v", one, c.Others, c.Shared)
	}
	x.send(100, true)
	x.pass()
	if c, _ = x.sampler.CauseCounts(); len(c.Shared) != 0 {
		t.Errorf("still shared: %v", c.Shared)
	}
}

// TestManyStates: an interval with more States than are kept is of no rule.
func TestManyStates(t *testing.T) {
	x := newLab(t)
	x.pass()
	x.send(40, false)
	for range 20 {
		x.apply(makeState(false))
	}
	x.pass()
	x.check(40)
	x.send(60, true)
	x.pass()
	x.check(40)
}

// TestMerged: packets of an ACL that stands for two rules are of neither, and both are named.
func TestMerged(t *testing.T) {
	x := newLab(t)
	x.apply(makeState(true))
	x.pass()
	x.send(600, true)
	x.pass()
	c, err := x.sampler.CauseCounts()
	if err != nil {
		t.Fatal(err)
	}
	sum := c.Others[model.Ingress][model.Allow]
	if sum == 0 || len(c.Shared) != 2 {
		t.Errorf("%d packets of no rule, shared %v", sum, c.Shared)
	}
	for _, n := range c.Causes {
		sum += n.Flows
		if most := x.want[fmt.Sprint(n.Verdict, " ", n.Cause)]; n.Flows > most {
			t.Errorf("%s: counted %d, of %d", n.Cause, n.Flows, most)
		}
	}
	if sum != 600 {
		t.Errorf("%d of 600 packets", sum)
	}
}

// TestOtherOutput: there are no numbers, with the reason, until the output is right again.
func TestOtherOutput(t *testing.T) {
	const list, rules = `{"Ports":[{"Id":"` + endpoint + `","Name":"` + port + `"}]}`, `{"Layers":[{"Name":"ACL_ENDPOINT_LAYER","Groups":[{"Rules":[`
	for name, c := range map[string]struct{ ports, rules, want string }{
		"text":       {"ITEM LIST", "", "not the expected JSON"},
		"no ports":   {"{}", "", "no ports"},
		"two ports":  {`{"Ports":[{"Id":"` + endpoint + `","Name":"` + port + `"},{"Id":"` + endpoint + `","Name":"` + endpoint + `"}]}`, "", "two ports"},
		"unlisted":   {`{"Ports":[]}`, "", "no port of endpoint"},
		"no layer":   {list, `{"Layers":[]}`, "no layer"},
		"no counter": {list, rules + `{"Id":"a"}]}]}]}`, "no MatchedPackets"},
		"other ids":  {list, rules + `{"Id":"a","InformationArray":[{"RuleCounters":{"MatchedPackets":1}}]}]}]}]}`, "none of 1 rules"},
		"negative":   {list, rules + `{"Id":"a","InformationArray":[{"RuleCounters":{"MatchedPackets":-1}}]}]}]}]}`, "not the expected JSON"},
		"fails":      {list, "", "run vfpctrl.exe"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newLab(t)
			x.print([]string{"/list-vmswitch-port", "/format", "1"}, json.RawMessage(`{}`))
			for args, text := range map[string]string{"-list-vmswitch-port -format 1": c.ports, file([]string{"/port", port, "/get-rule-counter", "/format", "1"}): c.rules} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(x.dir, args), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			x.sampler.Pass(context.Background())
			_, err := x.sampler.CauseCounts()
			if !errors.Is(err, dataplane.ErrNotCounted) || !strings.Contains(err.Error(), c.want) || !strings.Contains(x.sampler.Fact(), c.want) {
				t.Errorf("error %v, fact %s", err, x.sampler.Fact())
			}
			x.pass()
			x.send(10, true)
			x.pass()
			x.check(0)
		})
	}
	if _, err := rulecounters.Command("/does/not/exist")(context.Background()); !errors.Is(err, rulecounters.ErrMissing) {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"Layers":[{"Name":"ACL_ENDPOINT_LAYER","Groups":[{"Rules":[{"Id":"a","InformationArray":[{"RuleCounters":{"MatchedPackets":1}}]}]}]}]}`))
	f.Add([]byte(`{"Ports":[{"Id":"` + endpoint + `","Name":"` + port + `"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if ports, err := rulecounters.DecodePorts(text); err == nil {
			for id, name := range ports {
				if len(id) != 36 || len(name) != 36 || strings.ContainsAny(id+name, " /\\\"") {
					t.Fatalf("port %q of %q", name, id)
				}
			}
		}
		if rules, err := rulecounters.DecodeRules(text); err != nil && rules != nil {
			t.Fatal("rules and an error")
		}
	})
}
