// SPDX-License-Identifier: Apache-2.0

package path

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

// TestWritingAgent checks that programs evaluate policy again while the agent writes, and finally deny.
func TestWritingAgent(t *testing.T) {
	writingAgent(t, open(t, Ample))
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

// evaluator is a program that evaluates policy.
type evaluator struct {
	hook   loader.Hook
	hooked bool
}

// tooSlow is whether a system call of the agent takes longer than all verdicts of a packet, so that none is unsure: in guests
// of make test-kernel for arm64.
func tooSlow() bool { return os.Getenv("ISTHMUS_EMULATED") != "" && runtime.GOARCH == "arm64" }

// writingAgent sends packets while the generation of the maps changes continuously. Packets that policy denies
// never pass. Each program denies others sometimes, because no verdict is sure. When the agent has finished, these pass.
func writingAgent(t *testing.T, r *Runner) {
	t.Helper()
	all := openings(t, r)
	defer apart(t)()
	stop := r.replay.Stir()
	denied := make(map[evaluator]int) // although policy allows them
	for _, o := range all {
		if o.allowed {
			denied[evaluator{o.hook, o.hooked}] = 0
		}
	}
	misses := func() bool { return !tooSlow() && slices.Contains(slices.Collect(maps.Values(denied)), 0) }
	for begin := time.Now(); time.Since(begin) < time.Second || misses() && time.Since(begin) < 20*time.Second; {
		for i := range all {
			if o := &all[i]; !passes(t, r, o) && o.allowed {
				denied[evaluator{o.hook, o.hooked}]++
			}
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if !passes(t, r, &all[i]) && all[i].allowed {
			t.Errorf("hook %d, at rest: dropped: %s", all[i].hook, Text([]Step{{Packet: &all[i].packet}}))
		}
	}
	if misses() {
		t.Errorf("of each program's verdicts on maps that change, some are unsure: %v", denied)
	}
}

// apart gives the thread of the test a processor of its own, and all other threads the others, so that the agent and a program run at
// the same time. Without it a busy scheduler may give both the same processor, and no verdict is unsure.
func apart(t *testing.T) (undo func()) {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	rest, own := all, unix.CPUSet{}
	for n := 0; own.Count() == 0; n++ {
		if all.IsSet(n) {
			own.Set(n)
			rest.Clear(n)
		}
	}
	if rest.Count() == 0 {
		return func() {}
	}
	runtime.LockOSThread()
	bind(t, &rest)
	if err := unix.SchedSetaffinity(0, &own); err != nil {
		t.Fatal(err)
	}
	return func() {
		bind(t, &all)
		runtime.UnlockOSThread()
	}
}

// bind binds all threads to processors.
func bind(t *testing.T, to *unix.CPUSet) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = unix.SchedSetaffinity(id, to)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatalf("bind thread %s to processors: %v", thread.Name(), err)
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
