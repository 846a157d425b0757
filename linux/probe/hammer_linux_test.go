// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/world"
)

// While policies, labels, addresses and ports change a thousand times, the test sends packets
// without pause. It uses flows on which the States before and after a change agree. No packet
// may get another verdict.
func TestNoPacketMeetsAMixture(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	const edits = 1000 // with packets meanwhile
	p, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	shape := world.Shape{Pods: 8, Policies: 6, Tiers: true}
	s := world.Random(1, shape)
	state := compileFor(s, nil)
	if err := p.Apply(state); err != nil {
		t.Fatal(err)
	}
	packets, mixed, hammered := 0, uint64(0), 0
	for edit := uint64(0); hammered < edits; edit++ {
		if edit == 10*edits {
			t.Fatalf("only %d of %d edits leave an endpoint with flows that are decided alike", hammered, edit)
		}
		next := world.Mutate(edit+1, s, shape, 3)
		after := compileFor(next, state)
		steady := model.Verdict(edit % 2)
		frames, endpoint, d := alike(t, p, state, after, next, steady)
		var n int
		var wrong uint64
		if len(frames) == 0 {
			err = p.Apply(after)
		} else {
			hammered++
			n, wrong, err = hammer(p, endpoint, d, steady, frames, func() error { return p.Apply(after) })
		}
		if err != nil {
			t.Fatalf("edit %d: %v", edit, err)
		}
		if wrong != 0 {
			t.Errorf("edit %d: of %d packets that are to meet %s, %d met something else", edit, n, steady, wrong)
		}
		packets, mixed = packets+n, mixed+wrong
		s, state = next, after
	}
	t.Logf("edits=%d packets=%d mixed=%d", hammered, packets, mixed)
}

func compileFor(s *model.Snapshot, previous *model.State) *model.State {
	state, _ := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1"), Previous: previous})
	return state
}

// alike finds an endpoint and TCP flows in one direction that have the same verdict in two
// States, as frames that open them.
func alike(t *testing.T, p *Programs, before, after *model.State, s *model.Snapshot, v model.Verdict) (frames [][]byte, e bpfobj.PodEndpoint, d model.Direction) {
	t.Helper()
	const enough = 8
	addrs, ports := world.Probes(s)
	for id, b := range before.Policy.Endpoints {
		a, stays := after.Policy.Endpoints[id]
		if !stays || len(a.IPs) == 0 || !slices.Equal(a.IPs, b.IPs) {
			continue
		}
		own := a.IPs[0]
		for _, d := range model.Directions {
			frames = frames[:0]
			for _, remote := range addrs {
				for _, port := range ports {
					// Another program decides packets that DNAT may change.
					if d == model.Egress && !(policymap.IsPod(before, remote) && policymap.IsPod(after, remote)) {
						continue
					}
					if len(frames) == enough || port.Protocol != model.TCP || remote.Is6() != own.Is6() || slices.Contains(a.IPs, remote) ||
						before.Policy.Decide(id, d, remote, model.TCP, port.Port).Verdict != v || after.Policy.Decide(id, d, remote, model.TCP, port.Port).Verdict != v {
						continue
					}
					f := model.Flow{Src: own, Dst: remote, Protocol: model.TCP, Port: port.Port}
					src, dst := podMAC, hostMAC
					if d == model.Ingress {
						f.Src, f.Dst, src, dst = remote, own, hostMAC, podMAC
					}
					frames = append(frames, First(f, 2000, src, dst))
				}
			}
			if len(frames) > 0 {
				slot, _ := p.Slot(id)
				e := bpfobj.PodEndpoint{Slot: slot}
				copy(e.Mac[:], podMAC)
				if own.Is6() {
					e.Ip6 = own.As16()
				} else {
					e.Ip4 = own.As4()
				}
				return frames, e, d
			}
		}
	}
	return nil, e, d
}

// hammer sends frames from another thread while change runs, and counts packets with another
// verdict than steady.
func hammer(p *Programs, e bpfobj.PodEndpoint, d model.Direction, steady model.Verdict, frames [][]byte, change func() error) (packets int, wrong uint64, err error) {
	if err := p.path.PutEndpoint(loader.SandboxInterface, e); err != nil {
		return 0, 0, err
	}
	other := 2*int(d) + 1 - int(steady) // counter of the opposite verdict
	before, err := p.path.Counters()
	if err != nil {
		return 0, 0, err
	}
	const least, burst = 10_000, 256
	done, started := make(chan error, 1), make(chan struct{})
	var changed atomic.Bool
	go func() {
		var err error
		for n := 0; err == nil; n++ {
			err = p.path.Repeat(d, frames[n%len(frames)], burst)
			packets += burst
			switch {
			case n == len(frames):
				close(started)
			case changed.Load() && packets >= least:
				done <- err
				return
			}
		}
		done <- err
	}()
	select {
	case <-started:
		err = change()
	case err = <-done:
		return packets, 0, err
	}
	changed.Store(true)
	if sent := <-done; err == nil {
		err = sent
	}
	if err != nil {
		return packets, 0, err
	}
	after, err := p.path.Counters()
	return packets, after[other] - before[other], err
}
