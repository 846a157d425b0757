// SPDX-License-Identifier: Apache-2.0

package mapview

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

var (
	api    = netip.MustParseAddr("10.244.1.2")
	api6   = netip.MustParseAddr("fd44::2")
	web    = netip.MustParseAddr("10.244.1.3")
	remote = netip.MustParseAddr("10.244.2.2")
)

// node returns the maps of a node with two pods: web may reach TCP 80 of api.
func node() *Maps {
	e := policymap.NewEntries()
	e.Slots[0], e.Slots[1] = bpfobj.PodSlot{Table: 6, Epoch: 5}, bpfobj.PodSlot{Table: 11, Epoch: 6}
	e.Peers[web] = 3
	e.Pods[web] = true
	e.Peers[api6] = 3
	e.Prefixes[netip.MustParsePrefix("10.244.0.0/16")] = 2
	e.Prefixes[netip.MustParsePrefix("10.244.2.0/24")] = 4
	e.Ports[80] = 1
	e.Ports[65536+53] = 2
	e.Verdicts[6] = map[uint32]policymap.VerdictRow{4: {Row: bpfobj.RowAllow}, 6: {Row: 2}, 8: {Row: 9}}
	e.Rows[2] = bpfobj.PodRow{Allow: [16]uint64{2}}
	e.Tables[6] = model.TableID{0xab}
	return &Maps{Entries: e, Locals: map[netip.Addr]uint32{api: 0, api6: 0, web: 1}}
}

func TestTables(t *testing.T) {
	want := []Table{
		{Slot: 0, Addresses: []netip.Addr{api, api6}, Table: 6, Epoch: 5, Ingress: "deny", Egress: "allow", Rows: 3, Identity: "ab" + strings.Repeat("00", 15)},
		{Slot: 1, Addresses: []netip.Addr{web}, Table: 11, Epoch: 6, Ingress: "allow", Egress: "allow"},
	}
	if got := node().Tables(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPeers(t *testing.T) {
	m := node()
	for address, want := range map[netip.Addr]Peer{
		web:                              {Address: "10.244.1.3", Entry: "10.244.1.3", Map: "peers4", Class: 3, Pod: true},
		api6:                             {Address: "fd44::2", Entry: "fd44::2", Map: "peers6", Class: 3},
		remote:                           {Address: "10.244.2.2", Entry: "10.244.2.0/24", Map: "prefixes4", Class: 4},
		netip.MustParseAddr("192.0.2.1"): {Address: "192.0.2.1"},
	} {
		if got := m.Peer(address); got != want {
			t.Errorf("%s: %+v, want %+v", address, got, want)
		}
	}
	var classes []uint32
	for _, p := range m.Peers() {
		classes = append(classes, p.Class)
	}
	if !slices.Equal(classes, []uint32{2, 3, 3, 4}) {
		t.Errorf("classes %v", classes)
	}
}

func TestRows(t *testing.T) {
	var got []string
	for _, v := range node().Rows() {
		class := fmt.Sprint(v.Class)
		if v.Others {
			class = "others"
		}
		got = append(got, fmt.Sprintf("%d %v %s %s %v: %s %s", v.Table, v.Slots, v.Direction, class, v.Peers, v.Allowed, v.Problem))
	}
	want := []string{
		"6 [0] ingress 2 [10.244.0.0/16]: all ports ",
		"6 [0] ingress 3 [10.244.1.3 fd44::2]: TCP 80 ",
		"6 [0] ingress 4 [10.244.2.0/24]: no ports row 9 is not in the map rows, so the programs deny",
		"6 [0] ingress others []: no ports ",
		"6 [0] egress others []: all ports ",
		"11 [1] ingress others []: all ports ",
		"11 [1] egress others []: all ports ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// opens reads the text of a row as people do.
func opens(t *testing.T, text string, p model.Protocol, port int) bool {
	t.Helper()
	switch text {
	case allPorts:
		return true
	case noPorts:
		return false
	}
	list, but := strings.CutPrefix(text, "all but ")
	for item := range strings.SplitSeq(list, ", ") {
		protocol, ports, ok := strings.Cut(item, " ")
		first, last, ranged := strings.Cut(ports, "-")
		if !ranged {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if !ok || err1 != nil || err2 != nil {
			t.Fatalf("%q in %q", item, text)
		}
		if protocol == p.String() && from <= port && port <= to {
			return !but
		}
	}
	return but
}

// The text of a row says what the programs compute, for random maps, some of them damaged.
func TestRowsAsTheProgramsDecide(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 12 {
		e := policymap.NewEntries()
		classes := 1 + random.IntN(6)
		for i := 0; i < len(e.Ports); i += 1 + random.IntN(3000) {
			n := min(1+random.IntN(500), len(e.Ports)-i)
			for k := range n {
				e.Ports[i+k] = uint16(random.IntN(classes))
			}
			if random.IntN(20) == 0 {
				e.Ports[i] = uint16(random.IntN(1 << 16)) // damaged
			}
		}
		e.Slots[0] = bpfobj.PodSlot{Table: uint32(4 + random.IntN(4)), Epoch: 1}
		e.Verdicts[e.Slots[0].Table] = map[uint32]policymap.VerdictRow{}
		for n := range uint32(8) {
			e.Verdicts[e.Slots[0].Table][n] = policymap.VerdictRow{Row: n}
			if n > 1 && n != 7 {
				e.Rows[n] = bpfobj.PodRow{Allow: [16]uint64{random.Uint64()}}
			}
		}
		m := &Maps{Entries: e, Locals: map[netip.Addr]uint32{api: 0}}
		for _, v := range m.Rows() {
			d := model.Ingress
			if v.Direction == model.Egress.String() {
				d = model.Egress
			}
			class := model.PeerClass(v.Class)
			if v.Others {
				class = 4000
			}
			for range 60 {
				p, port := model.PortProtocols[random.IntN(3)], random.IntN(65536)
				want := e.Verdict(e.Row(0, d, class), p, uint16(port)) == model.Allow
				if got := opens(t, v.Allowed, p, port); got != want {
					t.Fatalf("%s port %d, %+v: the text says %t, the programs %t", p, port, v, got, want)
				}
			}
		}
	}
}

func conn(opened, accepted bpfobj.PodApproval) Conn {
	c := Conn{Ends: [2]netip.AddrPort{netip.AddrPortFrom(api, 80), netip.AddrPortFrom(web, 40000)}, Protocol: model.TCP}
	c.Value.End = [2]bpfobj.PodApproval{accepted, opened}
	c.Value.Sent = [2]uint32{1, 2}
	c.Value.State = uint8(bpfobj.PodConnStateCONN_ESTABLISHED)
	c.Value.Seen = 1000
	return c
}

func TestFlows(t *testing.T) {
	const opened, accepted, revoked = uint8(bpfobj.PodRoleROLE_OPENED), uint8(bpfobj.PodRoleROLE_ACCEPTED), uint8(bpfobj.PodRoleROLE_REVOKED)
	for name, c := range map[string]struct {
		conn Conn
		next string
		why  string
	}{
		"authorised": {conn(bpfobj.PodApproval{Epoch: 6, Authorised: opened}, bpfobj.PodApproval{Epoch: 5, Authorised: accepted}),
			NextPasses, "egress of 10.244.1.3 (epoch 6); ingress of 10.244.1.2 (epoch 5)"},
		"policy changed": {conn(bpfobj.PodApproval{Epoch: 6, Authorised: opened}, bpfobj.PodApproval{Epoch: 4, Authorised: accepted}),
			NextDecided, "egress of 10.244.1.3 (epoch 6); policy of 10.244.1.2 changed: epoch 4, now 5"},
		"revoked": {conn(bpfobj.PodApproval{Epoch: 6, Authorised: opened}, bpfobj.PodApproval{Epoch: 5, Authorised: accepted | revoked}),
			NextDropped, "egress of 10.244.1.3 (epoch 6); policy of 10.244.1.2 denies it now"},
		"revoked, then changed": {conn(bpfobj.PodApproval{Epoch: 6, Authorised: opened}, bpfobj.PodApproval{Epoch: 4, Authorised: accepted | revoked}),
			NextDecided, "egress of 10.244.1.3 (epoch 6); policy of 10.244.1.2 changed: epoch 4, now 5"},
		"one verdict is missing": {conn(bpfobj.PodApproval{Epoch: 6, Authorised: opened}, bpfobj.PodApproval{}),
			NextDecided, "egress of 10.244.1.3 (epoch 6); no verdict for 10.244.1.2 yet"},
	} {
		t.Run(name, func(t *testing.T) {
			m := node()
			m.Conns = []Conn{c.conn}
			got := m.Flows(1500, 250)[0]
			if got.Next != c.next || strings.Join(got.Why, "; ") != c.why {
				t.Errorf("%s, %q", got.Next, got.Why)
			}
			if got.From != c.conn.Ends[1] || got.To != c.conn.Ends[0] || got.Packets != [2]uint32{2, 1} || got.State != "established" || got.Idle != 2*time.Second {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A flow shows the addresses before DNAT and masquerading, of both IP versions, and a clock that was read before the
// flow.
func TestFlowsTranslated(t *testing.T) {
	m := node()
	c := conn(bpfobj.PodApproval{Epoch: 6, Authorised: uint8(bpfobj.PodRoleROLE_OPENED)}, bpfobj.PodApproval{})
	c.Ends[0] = netip.MustParseAddrPort("10.96.0.1:443")
	c.Value.FlowFlags = uint32(bpfobj.PodConnFlagCONN_TRANSLATED | bpfobj.PodConnFlagCONN_OUTSIDE)
	c.Value.Backend, c.Value.BackendPort = remote.As16(), 8443
	six := c
	six.Ends = [2]netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:5000"), netip.AddrPortFrom(api6, 80)}
	six.Value.End = [2]bpfobj.PodApproval{{}, {Epoch: 5, Authorised: uint8(bpfobj.PodRoleROLE_ACCEPTED)}}
	six.Value.FlowFlags, six.Value.Client = uint32(bpfobj.PodConnFlagCONN_MASQUERADED), netip.MustParseAddr("2001:db8::9").As16()
	withPort := six
	withPort.Value.ClientPort = 5001
	m.Conns = []Conn{c, six, withPort}
	got := m.Flows(900, 250)
	if len(got) != 3 || got[0].Idle != 0 || got[0].Backend != "10.244.2.2:8443" || got[0].Next != NextPasses || !slices.Equal(got[0].Path, []string{"DNAT", "remote end is not a pod"}) {
		t.Errorf("%+v", got)
	}
	if len(got) == 3 && (got[1].Client != "2001:db8::9" || got[1].From != six.Ends[0] || got[1].Next != NextPasses) {
		t.Errorf("%+v", got[1])
	}
	if len(got) == 3 && got[2].Client != "[2001:db8::9]:5001" {
		t.Errorf("%+v", got[2])
	}
}
