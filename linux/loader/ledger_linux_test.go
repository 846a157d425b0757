// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// crowd is a flow table of a given size, and two pods that may send anything.
type crowd struct {
	t    *testing.T
	path *loader.DataPath
	pods [2]bpfobj.PodEndpoint
}

func newCrowd(t *testing.T, size int, timeouts loader.Timeouts) *crowd {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	path, err := loader.OpenSandboxWith(loader.Settings{Timeouts: timeouts, Flows: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { path.Close() })
	c := &crowd{t: t, path: path}
	if err := path.Execute(&policymap.Writes{Tables: []policymap.TableWrite{{Number: tableOut}}}); err != nil {
		t.Fatal(err)
	}
	for i := range c.pods {
		c.pods[i] = bpfobj.PodEndpoint{Ip4: pod4.As4(), Ip6: pod6.As16(), Slot: uint32(i)}
		c.pods[i].Ip4[3] += byte(100 * i)
		c.pods[i].Ip6[15] += byte(100 * i)
		copy(c.pods[i].Mac[:], podMAC)
		slot := policymap.SlotWrite{Index: uint32(i), Slot: bpfobj.PodSlot{Table: tableOut, Epoch: uint32(i) + 2}}
		if err := path.WriteSlot(slot); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// frame returns a datagram between a pod and a server outside.
func (c *crowd) frame(pod int, d way, v6 bool, port uint16) []byte {
	four, six := ip4(d, layers.IPProtocolUDP), ip6(d, layers.IPProtocolUDP)
	own4, own6 := c.pods[pod].Ip4, c.pods[pod].Ip6
	if d == out {
		four.SrcIP, six.SrcIP = own4[:], own6[:]
	} else {
		four.DstIP, six.DstIP = own4[:], own6[:]
	}
	src, dst := port, uint16(53)
	if d == in {
		src, dst = dst, src
	}
	if v6 {
		return frame(d, six, udp(src, dst), payload)
	}
	return frame(d, four, udp(src, dst), payload)
}

func (c *crowd) open(pod int, v6 bool, port uint16) {
	c.t.Helper()
	if pass, err := c.path.Run(c.pods[pod], model.Egress, c.frame(pod, out, v6, port)); err != nil || !pass {
		c.t.Fatalf("pod %d opens a flow from port %d: %t, %v", pod, port, pass, err)
	}
}

// known reports whether answers of a flow pass.
func (c *crowd) known(pod int, v6 bool, port uint16) bool {
	c.t.Helper()
	pass, err := c.path.Run(c.pods[pod], model.Ingress, c.frame(pod, in, v6, port))
	if err != nil {
		c.t.Fatal(err)
	}
	return pass
}

// shares returns the flows of both pods for an IP version, and the number of entries.
func (c *crowd) shares(v6 bool) (shares [2]int, entries int) {
	c.t.Helper()
	all, err := c.path.FlowShares()
	if err != nil {
		c.t.Fatal(err)
	}
	n := map[bool]int{false: 0, true: 1}[v6]
	for pod := range shares {
		shares[pod] = int(all[pod][n])
	}
	if entries, err = c.path.CountFlows(v6); err != nil {
		c.t.Fatal(err)
	}
	return shares, entries
}

var forever = loader.Timeouts{Opening: time.Hour, TCP: time.Hour, Other: time.Hour, Closing: time.Hour}

// A pod that opens more flows than the table can hold loses its own flows, and not those of
// another pod.
func TestFloodEvictsNoFlowsOfOtherPods(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const size, quiet = 4096, 1000
		c := newCrowd(t, size, forever)
		for port := range uint16(quiet) {
			c.open(1, v6, 1000+port)
			if port%2 == 0 && !c.known(1, v6, 1000+port) {
				t.Fatal("an answer does not pass")
			}
		}
		flood := c.frame(0, out, v6, 0)
		at := 34 // offset of the port
		if v6 {
			at = 54
		}
		for n := range 10 * size {
			binary.BigEndian.PutUint16(flood[at:], uint16(n))
			binary.BigEndian.PutUint16(flood[at+2:], uint16(100+n>>16))
			for range 2 { // as if the flow was in use
				if pass, err := c.path.Run(c.pods[0], model.Egress, flood); err != nil || !pass {
					t.Fatal(pass, err)
				}
			}
		}
		lost := 0
		for port := range uint16(quiet) {
			if !c.known(1, v6, 1000+port) {
				lost++
			}
		}
		shares, entries := c.shares(v6)
		t.Logf("%d flows of the other pod are lost; shares %v of %d, %d entries", lost, shares, size, entries)
		if lost > 0 {
			t.Errorf("%d of %d flows of the other pod are lost", lost, quiet)
		}
		if shares[0]+shares[1] != entries || shares[1] != quiet || shares[0] < (size-quiet)*9/10 {
			t.Errorf("shares %v of %d entries, want %d and the rest", shares, entries, quiet)
		}
		// A pod with few flows may evict flows of a pod with many.
		for port := range uint16(quiet) {
			c.open(1, v6, 9000+port)
		}
		fresh := 0
		for port := range uint16(quiet) {
			if c.known(1, v6, 9000+port) {
				fresh++
			}
		}
		if fresh < quiet*95/100 {
			t.Errorf("%d of %d new flows of the other pod are known", fresh, quiet)
		}
	})
}

// Flows from elsewhere count for the pod that accepts them. A flood of them evicts no flows of
// another pod.
func TestFloodIntoAPod(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const size, quiet = 1024, 250
		c := newCrowd(t, size, forever)
		const open = tableOut | 1 // the lowest bit is the verdict on ingress
		if err := c.path.Execute(&policymap.Writes{Tables: []policymap.TableWrite{{Number: open}}}); err != nil {
			t.Fatal(err)
		}
		for port := range uint16(quiet) {
			c.open(1, v6, 1000+port)
			if port%2 == 0 && !c.known(1, v6, 1000+port) {
				t.Fatal("an answer does not pass")
			}
		}
		if err := c.path.WriteSlot(policymap.SlotWrite{Slot: bpfobj.PodSlot{Table: open, Epoch: 9}}); err != nil {
			t.Fatal(err)
		}
		for port := range uint16(8 * size) {
			for range 2 {
				if !c.known(0, v6, 20000+port) { // accepted, as the table is open
					t.Fatal("a flow into the pod does not pass")
				}
			}
		}
		lost := 0
		for port := range uint16(quiet) {
			if !c.known(1, v6, 1000+port) {
				lost++
			}
		}
		shares, entries := c.shares(v6)
		if lost > 0 || shares[1] != quiet || shares[0]+shares[1] != entries || shares[0] < (size-quiet)*9/10 {
			t.Errorf("%d of %d flows of the other pod are lost; shares %v of %d entries", lost, quiet, shares, entries)
		}
	})
}

// A pod loses no flow to another one with as many flows.
func TestEqualShares(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const size = 64
		c := newCrowd(t, size, forever)
		for port := range uint16(size / 2) {
			c.open(0, v6, 1000+port)
			c.open(1, v6, 1000+port)
		}
		for port := range uint16(4 * size) {
			c.open(0, v6, 2000+port)
		}
		for port := range uint16(size / 2) {
			if !c.known(1, v6, 1000+port) {
				t.Errorf("flow %d of the other pod is lost", port)
			}
		}
		if shares, entries := c.shares(v6); shares != [2]int{size / 2, size / 2} || entries != size {
			t.Errorf("shares %v of %d entries", shares, entries)
		}
	})
}

// Expired flows make room for those of any pod, and are counted once.
func TestExpiredFlowsMakeRoom(t *testing.T) {
	const size = 1024
	const timeout = 2500 * time.Millisecond // a slow machine opens and queries the flows below in less
	c := newCrowd(t, size, loader.Timeouts{Opening: timeout, TCP: time.Hour, Other: time.Hour, Closing: time.Hour})
	for round := range 3 {
		for port := range uint16(size) {
			c.open(round%2, false, 1000+port)
		}
		time.Sleep(timeout + 200*time.Millisecond)
	}
	for port := range uint16(size / 2) {
		c.open(0, false, 1000+port) // expired flows open again at their indexes
	}
	known := 0
	for port := range uint16(size / 2) {
		if c.known(0, false, 1000+port) {
			known++
		}
	}
	shares, entries := c.shares(false)
	if known != size/2 || shares[0]+shares[1] != entries || entries > size {
		t.Errorf("%d of %d flows are known; shares %v, %d entries", known, size/2, shares, entries)
	}
}

// The usage of the flow table counts flows that have not expired, also by a sample of a large table. Once each entry had a flow, nearly
// all still have one.
func TestFlowUsage(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const timeout = 2 * time.Second
		for _, size := range []int{1024, 16384} {
			c := newCrowd(t, size, loader.Timeouts{Opening: timeout, TCP: time.Hour, Other: time.Hour, Closing: time.Hour})
			used := func() int {
				t.Helper()
				all, err := c.path.FlowUsage()
				if err != nil {
					t.Fatal(err)
				}
				u := all[map[bool]string{false: "conns4", true: "conns6"}[v6]]
				if u.Capacity != size {
					t.Errorf("a table of %d entries has a capacity of %d", size, u.Capacity)
				}
				return u.Entries
			}
			began := time.Now()
			for port := range uint16(size) {
				c.open(0, v6, 1000+port)
				if port%4 == 0 && !c.known(0, v6, 1000+port) {
					t.Fatal("an answer does not pass")
				}
			}
			if n := used(); n != size && time.Since(began) < timeout { // an emulated processor takes longer
				t.Errorf("%d of %d entries are used, want all", n, size)
			}
			time.Sleep(timeout + 200*time.Millisecond)
			if n := used(); n < size*22/100 || n > size*28/100 || size == 1024 && n != size/4 {
				t.Errorf("%d of %d entries are used after three quarters of the flows have expired", n, size)
			}
			if _, entries := c.shares(v6); entries != size {
				t.Errorf("%d of %d entries have a flow", entries, size)
			}
		}
	})
}

// In a full table, flows without an answer make room before flows that were answered.
func TestUnansweredFlowsMakeRoom(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const size, fresh = 1024, 256
		c := newCrowd(t, size, forever)
		for port := range uint16(size) { // every second flow has an answer
			c.open(0, v6, 1000+port)
			if port%2 == 0 && !c.known(0, v6, 1000+port) {
				t.Fatal("an answer does not pass")
			}
		}
		time.Sleep(2 * loader.AnswerTime)
		for port := range uint16(fresh) {
			c.open(0, v6, 9000+port)
		}
		lost := 0
		for port := uint16(0); port < size; port += 2 {
			if !c.known(0, v6, 1000+port) {
				lost++
			}
		}
		if _, entries := c.shares(v6); lost > 0 || entries != size {
			t.Errorf("%d of %d answered flows are lost for %d new flows, %d entries of %d", lost, size/2, fresh, entries, size)
		}
	})
}

// Concurrent CPUs keep the ledger consistent.
func TestLedgerUnderConcurrency(t *testing.T) {
	const size = 2048
	c := newCrowd(t, size, loader.Timeouts{Opening: 20 * time.Millisecond, TCP: time.Hour, Other: time.Hour, Closing: time.Hour})
	index, ns := c.interfaces()
	var wait sync.WaitGroup
	for worker := range 8 {
		pod := worker % 2
		wait.Go(func() {
			f := c.frame(pod, out, false, 0)
			if err := ns.Do(func() error {
				for n := range 20000 {
					binary.BigEndian.PutUint16(f[34:], uint16(n*7919+worker/4*13))
					if err := c.path.RunOn(index[pod], model.Egress, f); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	shares, entries := c.shares(false)
	t.Logf("shares %v, %d entries", shares, entries)
	if shares[0]+shares[1] != entries || shares[0] < 0 || shares[1] < 0 || entries > size {
		t.Errorf("shares %v, %d entries of %d", shares, entries, size)
	}
}
