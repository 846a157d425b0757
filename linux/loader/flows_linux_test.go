// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// TestSweepLeavesLiveFlows walks through the flows again and again while some
// of them carry packets, others go idle, and others begin anew the moment that
// they have expired.
func TestSweepLeavesLiveFlows(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		b.path.Close()
		const opening = 300 * time.Millisecond
		path, err := loader.OpenSandboxWith(loader.Settings{Timeouts: loader.Timeouts{Opening: opening, TCP: time.Hour, Other: time.Hour, Closing: opening}})
		if err != nil {
			t.Fatal(err)
		}
		b.path = path
		t.Cleanup(func() { path.Close() })
		b.under(2<<2 | 0b10) // egress only: answers pass as part of their flow

		const idle, held = 3000, 50
		for port := range uint16(idle) {
			b.expect(out, frame(out, ip(v6, out, layers.IPProtocolUDP), udp(10000+port, 53), payload), true, bpfobj.CountEgressAllow)
		}
		for port := range uint16(held) {
			b.expect(out, frame(out, ip(v6, out, layers.IPProtocolUDP), udp(1000+port, 53), payload), true, bpfobj.CountEgressAllow)
			b.expect(in, frame(in, ip(v6, in, layers.IPProtocolUDP), udp(53, 1000+port), payload), true, nothing)
		}
		var stop atomic.Bool
		var walks atomic.Int32
		var walker sync.WaitGroup
		walker.Go(func() {
			for !stop.Load() {
				done, err := path.SweepFlows(time.Millisecond)
				if err != nil {
					t.Error(err)
				}
				if done || err != nil {
					walks.Add(1)
				}
			}
		})
		question := frame(out, ip(v6, out, layers.IPProtocolUDP), udp(0, 53), payload)
		answer := frame(in, ip(v6, in, layers.IPProtocolUDP), udp(53, 0), payload)
		at := 14 + 20
		if v6 {
			at = 14 + 40
		}
		lost, asked := 0, 0
		ask := func(port uint16) {
			binary.BigEndian.PutUint16(question[at:], port)
			binary.BigEndian.PutUint16(answer[at+2:], port)
			asked++
			for _, packet := range []struct {
				d    model.Direction
				data []byte
			}{{model.Egress, question}, {model.Ingress, answer}} {
				if pass, err := path.Run(b.pod, packet.d, packet.data); err != nil || !pass {
					lost++
				}
			}
		}
		began := time.Now()
		hold := func(until time.Duration) { // once at least, however slow this machine is
			for more := true; more; more = time.Since(began) < until {
				for port := range uint16(held) {
					ask(1000 + port)
				}
			}
		}
		hold(opening)
		for more := true; more; more = time.Since(began) < 2*opening {
			for port := range uint16(idle / 10) { // expired, or gone, or about to go
				ask(10000 + port)
			}
			hold(0)
		}
		hold(4 * opening)
		for walks.Load() == 0 {
			hold(0)
		}
		stop.Store(true)
		walker.Wait()
		if lost > 0 {
			t.Errorf("%d packets of %d live flows were lost", lost, asked)
		}
		for done := false; !done; {
			if done, err = path.SweepFlows(time.Second); err != nil {
				t.Fatal(err)
			}
		}
		name := map[bool]string{false: "conns4", true: "conns6"}[v6]
		if got := path.FlowUsage()[name].Entries; got != held+idle/10 {
			t.Errorf("%s has %d flows after %d walks, want %d", name, got, walks.Load(), held+idle/10)
		}
	})
}

// TestSweepIsBounded measures the turns of a walk through full maps.
func TestSweepIsBounded(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	b := newBench(t)
	b.under(2<<2 | 0b10)
	question := frame(out, ip(false, out, layers.IPProtocolUDP), udp(0, 53), payload)
	for port := range uint16(60000) {
		binary.BigEndian.PutUint16(question[34:], port)
		if pass, err := b.path.Run(b.pod, model.Egress, question); err != nil || !pass {
			t.Fatal(pass, err)
		}
	}
	turns := 1
	for ; ; turns++ {
		done, err := b.path.SweepFlows(100 * time.Microsecond)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			break
		}
	}
	if turns < 10 {
		t.Errorf("60000 flows were looked at in %d turns of 0.1 ms", turns)
	}
	if got := b.path.FlowUsage()["conns4"]; got.Entries != 60000 {
		t.Errorf("counted %+v, want 60000 flows", got)
	}
}
