// SPDX-License-Identifier: Apache-2.0

package mapview

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Flow is an entry of the flow table.
type Flow struct {
	Protocol string `json:"protocol"`
	// From is the end that opened the flow, if a local pod is at either end.
	From netip.AddrPort `json:"from"`
	To   netip.AddrPort `json:"to"`
	// State is opening, established or closing.
	State string `json:"state"`
	// Next is the outcome of the next packet: see the constants.
	Next string `json:"next"`
	// Why names the ends that policy authorised.
	Why []string `json:"why"`
	// Packets were sent by From and by To.
	Packets [2]uint32 `json:"packets"`
	// Idle is the time since the last packet.
	Idle time.Duration `json:"idleNanoseconds"`
	// Path says how packets travel.
	Path []string `json:"path"`
	// Backend and Client are the other addresses of a flow that was translated. Client has no port in flows of older versions.
	Backend string `json:"backend,omitempty"`
	Client  string `json:"client,omitempty"`
}

// The outcomes of the next packet of a flow.
const (
	NextPasses  = "passes"        // each local end is authorised under its present policy
	NextDecided = "decided again" // policy changed, or an end has no verdict yet
	NextDropped = "dropped"       // a later policy denies the flow
)

// Flows returns the entries of the flow table, the latest first. now is the clock that the programs stored, and hz
// its rate. An entry that is idle for longer than its timeout counts as a new flow, whatever Next says.
func (m *Maps) Flows(now uint32, hz int) []Flow {
	all := make([]Flow, 0, len(m.Conns))
	for i := range m.Conns {
		all = append(all, m.flow(&m.Conns[i], now, hz))
	}
	slices.SortStableFunc(all, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(a.Idle, b.Idle), a.From.Compare(b.From), a.To.Compare(b.To), cmp.Compare(a.Protocol, b.Protocol))
	})
	return all
}

func (m *Maps) flow(c *Conn, now uint32, hz int) Flow {
	from, to := 0, 1
	if c.Value.End[1].Authorised&uint8(bpfobj.PodRoleROLE_OPENED) != 0 || c.Value.End[0].Authorised&uint8(bpfobj.PodRoleROLE_ACCEPTED) != 0 {
		from, to = 1, 0
	}
	f := Flow{Protocol: c.Protocol.String(), From: c.Ends[from], To: c.Ends[to], State: "unknown",
		Packets: [2]uint32{c.Value.Sent[from], c.Value.Sent[to]}}
	switch bpfobj.PodConnState(c.Value.State) {
	case bpfobj.PodConnStateCONN_OPENING:
		f.State = "opening"
	case bpfobj.PodConnStateCONN_ESTABLISHED:
		f.State = "established"
	case bpfobj.PodConnStateCONN_CLOSING:
		f.State = "closing"
	}
	if idle := int32(now - c.Value.Seen); idle > 0 && hz > 0 { // a packet may have passed since now was read
		f.Idle = time.Duration(idle) * time.Second / time.Duration(hz)
	}
	f.Next, f.Why = m.next(c, [2]int{from, to})
	f.Path = path(bpfobj.PodConnFlag(c.Value.FlowFlags))
	if bpfobj.PodConnFlag(c.Value.FlowFlags)&bpfobj.PodConnFlagCONN_TRANSLATED != 0 {
		f.Backend = netip.AddrPortFrom(like(c.Value.Backend, f.To.Addr()), c.Value.BackendPort).String()
	}
	if bpfobj.PodConnFlag(c.Value.FlowFlags)&bpfobj.PodConnFlagCONN_MASQUERADED != 0 {
		client := like(c.Value.Client, f.From.Addr())
		if f.Client = client.String(); c.Value.ClientPort != 0 {
			f.Client = netip.AddrPortFrom(client, c.Value.ClientPort).String()
		}
	}
	return f
}

// next compares the roles of both ends with the present epochs of their slots.
func (m *Maps) next(c *Conn, order [2]int) (next string, why []string) {
	next = NextPasses
	for _, i := range order {
		end, a := c.Value.End[i], c.Ends[i].Addr()
		slot, local := m.Locals[a]
		if !local {
			continue
		}
		epoch := m.Slots[slot].Epoch
		roles := bpfobj.PodRole(end.Authorised)
		switch {
		case roles&bpfobj.PodRoleROLE_REVOKED != 0 && end.Epoch == epoch:
			next = NextDropped
			why = append(why, fmt.Sprintf("policy of %s denies it now", a))
		case roles == 0:
			if next == NextPasses {
				next = NextDecided
			}
			why = append(why, fmt.Sprintf("no verdict for %s yet", a))
		case end.Epoch != epoch:
			if next == NextPasses {
				next = NextDecided
			}
			why = append(why, fmt.Sprintf("policy of %s changed: epoch %d, now %d", a, end.Epoch, epoch))
		default:
			why = append(why, fmt.Sprintf("%s of %s (epoch %d)", roleText(roles), a, epoch))
		}
	}
	if len(why) == 0 {
		return NextDecided, []string{"no end is a pod of this node"}
	}
	return next, why
}

func roleText(r bpfobj.PodRole) string {
	var words []string
	if r&bpfobj.PodRoleROLE_OPENED != 0 {
		words = append(words, "egress")
	}
	if r&bpfobj.PodRoleROLE_ACCEPTED != 0 {
		words = append(words, "ingress")
	}
	text := strings.Join(words, " and ")
	if r&bpfobj.PodRoleROLE_OF_HOST != 0 {
		text += " from the own node"
	}
	return strings.TrimSpace(text)
}

// path describes the flags of a flow.
func path(f bpfobj.PodConnFlag) []string {
	var words []string
	for _, x := range []struct {
		flag bpfobj.PodConnFlag
		word string
	}{
		{bpfobj.PodConnFlagCONN_DIRECT, "same node, fast path"},
		{bpfobj.PodConnFlagCONN_REMOTE, "other node, fast path"},
		{bpfobj.PodConnFlagCONN_TRANSLATED, "DNAT"},
		{bpfobj.PodConnFlagCONN_MASQUERADED, "masqueraded client"},
		{bpfobj.PodConnFlagCONN_OUTSIDE, "remote end is not a pod"},
		{bpfobj.PodConnFlagCONN_PORT_TAKEN, "port taken"},
	} {
		if f&x.flag != 0 {
			words = append(words, x.word)
		}
	}
	if len(words) == 0 {
		words = append(words, "host stack")
	}
	return words
}

// like converts 16 bytes of a flow to the IP version of another address. IPv4 uses the last four bytes.
func like(b [16]uint8, other netip.Addr) netip.Addr {
	if other.Is4() {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}
