// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

// TestWritingAgent checks that programs evaluate policy again while the agent writes, and finally deny.
func TestWritingAgent(t *testing.T) {
	writingAgent(t, openWith(t, Ample, Instruments{Unsettled: true}))
}

// opening is a packet that opens a flow at a hook.
type opening struct {
	hook            loader.Hook
	device, ingress int
	mark            uint32
	packet          reference.Packet
	src             [6]byte
	allowed, hooked bool
}

// writingAgent sends packets while the generation of the maps changes continuously: packets that policy denies never pass. Then it
// changes during each verdict, so that none is sure: each program denies all packets. At rest, those that policy allows pass.
func writingAgent(t *testing.T, r *Runner) {
	t.Helper()
	all := openings(t, r)
	stop := r.replay.Stir()
	for begin := time.Now(); time.Since(begin) < time.Second; {
		for i := range all {
			passes(t, r, &all[i])
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := r.unsettle(true); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if passes(t, r, &all[i]) {
			t.Errorf("hook %d, no verdict is sure: passes: %s", all[i].hook, Text([]Step{{Packet: &all[i].packet}}))
		}
	}
	if err := r.unsettle(false); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if !passes(t, r, &all[i]) && all[i].allowed {
			t.Errorf("hook %d, at rest: dropped: %s", all[i].hook, Text([]Step{{Packet: &all[i].packet}}))
		}
	}
}

// passes runs a packet, and reports one that must not pass but does.
func passes(t *testing.T, r *Runner, o *opening) bool {
	t.Helper()
	r.hooked = o.hooked
	out, err := r.run(o.hook, o.device, o.ingress, o.mark, &o.packet, o.src)
	if err != nil {
		t.Fatal(err)
	}
	if out.Passed && !o.allowed {
		t.Fatalf("hook %d: passes: %s", o.hook, Text([]Step{{Packet: &o.packet}}))
	}
	return out.Passed
}

// openings attaches pod a, which is not isolated, and pod b, to which policy allows nothing. It returns packets
// to and from both.
func openings(t *testing.T, r *Runner) (all []opening) {
	t.Helper()
	nothing := reference.Policy{Isolated: [2]bool{true, true}}
	outside, first := same(strangers[:2], false), reference.Packet{Proto: reference.TCP, Flags: "S", Sport: 1000, Dport: 80}
	first.Src, first.Dst = outside, podAddrs(0)[0]
	// The first packet updates the maps.
	if err := r.Run([]Step{{Pod: &PodStep{Name: "a"}}, {Pod: &PodStep{Name: "b", Address: 1, Policy: nothing}}, {At: "uplink", Packet: &first}}); err != nil {
		t.Fatal(err)
	}
	a, b := deviceOf("a"), deviceOf("b")
	for _, v6 := range []bool{false, true} {
		syn := func(src, dst netip.Addr) reference.Packet {
			p := first
			p.Src, p.Dst = src, dst
			return p
		}
		own, other, outside := same(podAddrs(0), v6), same(podAddrs(1), v6), same(strangers[:2], v6)
		all = append(all,
			opening{hook: loader.AtFromPod, device: a, packet: syn(own, other), src: macOf("a")},
			opening{hook: loader.AtFromPod, device: b, packet: syn(other, own), src: macOf("b")},
			opening{hook: loader.AtToPod, device: a, ingress: uplink, packet: syn(outside, own), src: hostMAC, allowed: true},
			opening{hook: loader.AtToPod, device: b, ingress: uplink, packet: syn(outside, other), src: hostMAC})
		for i, address := range []netip.Addr{own, other} {
			device, name := []int{a, b}[i], []string{"a", "b"}[i]
			p := syn(address, outside)
			out, err := r.run(loader.AtFromPod, device, 0, 0, &p, macOf(name))
			if err != nil || !out.Passed {
				t.Fatalf("from_pod of %s: %+v, %v", name, out, err)
			}
			filtered := opening{hook: loader.AtForward, device: device, ingress: device, mark: out.Mark, packet: p, src: hostMAC, allowed: name == "a"}
			if all = append(all, filtered); r.Hooks() {
				hooked := filtered
				hooked.hooked = true
				all = append(all, hooked)
			}
		}
	}
	return all
}
