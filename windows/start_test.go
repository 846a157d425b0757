// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// begun is an attachment that was started.
type begun struct {
	spec   dataplane.EndpointSpec
	done   chan struct{}
	finish func(context.Context) (dataplane.Attachment, error)
}

func (n *node) begin(spec dataplane.EndpointSpec) begun {
	n.t.Helper()
	b := begun{spec: spec, done: make(chan struct{})}
	var err error
	if b.finish, err = n.backend.StartEndpoint(ctx, spec, func() { close(b.done) }); err != nil {
		n.t.Fatal(err)
	}
	return b
}

func (b begun) end() error {
	<-b.done
	_, err := b.finish(ctx)
	return err
}

// several are specs of pods c0, c1, ...
func (n *node) several(count int) (all []dataplane.EndpointSpec) {
	for i := range count {
		all = append(all, n.spec(fmt.Sprintf("c%d", i), fmt.Sprintf("10.0.1.%d", 10+i)))
	}
	return all
}

// TestStartEndpoint checks that concurrent attachments have the same result as AddEndpoint.
func TestStartEndpoint(t *testing.T) {
	everyHNS(t, func(t *testing.T, n *node) {
		serial := newNode(t, hns.Server2022, n.config)
		for _, spec := range serial.several(4) {
			serial.add(spec)
		}
		// Every creation waits until all have begun.
		var together sync.WaitGroup
		together.Add(4)
		n.fake.Before(func(op, _ string) error {
			if op == "CreateEndpoint" {
				together.Done()
				together.Wait()
			}
			return nil
		})
		var all []begun
		for _, spec := range n.several(4) {
			all = append(all, n.begin(spec))
		}
		for _, b := range all {
			if err := b.end(); err != nil {
				t.Fatal(err)
			}
		}
		n.fake.Before(nil)
		if n.fake.Dump() != serial.fake.Dump() {
			t.Errorf("side by side:\n%s\none after another:\n%s", n.fake.Dump(), serial.fake.Dump())
		}
		n.wellDNS()
	})
}

// TestStartEndpointInTheWay checks that a started attachment repairs, refuses and reports the same
// as AddEndpoint.
func TestStartEndpointInTheWay(t *testing.T) {
	for name, prepare := range map[string]func(n *node, spec *dataplane.EndpointSpec){
		"exists already":   func(n *node, spec *dataplane.EndpointSpec) { n.add(*spec) },
		"is detached":      func(n *node, spec *dataplane.EndpointSpec) { n.add(*spec); detach(n.t, n, n.stored(spec.ID)) },
		"address is taken": func(n *node, _ *dataplane.EndpointSpec) { n.add(n.spec("old", "10.0.1.7")) },
		"wrong address":    func(_ *node, spec *dataplane.EndpointSpec) { spec.IPs = nil },
		"no namespace":     func(_ *node, spec *dataplane.EndpointSpec) { spec.NetNS = "gone" },
	} {
		t.Run(name, func(t *testing.T) {
			var texts, dumps [2]string
			for i, attach := range []func(n *node, spec dataplane.EndpointSpec) error{
				func(n *node, spec dataplane.EndpointSpec) error {
					_, err := n.backend.AddEndpoint(ctx, spec)
					return err
				},
				func(n *node, spec dataplane.EndpointSpec) error {
					done := make(chan struct{})
					finish, err := n.backend.StartEndpoint(ctx, spec, func() { close(done) })
					if err == nil {
						<-done
						_, err = finish(ctx)
					}
					return err
				},
			} {
				n := newNode(t, hns.Server2022, bridgeConfig())
				spec := n.spec("c1", "10.0.1.7")
				prepare(n, &spec)
				texts[i] = fmt.Sprint(attach(n, spec))
				dumps[i] = n.fake.Dump()
			}
			if texts[0] != texts[1] || dumps[0] != dumps[1] {
				t.Errorf("AddEndpoint: %s\n%s\nStartEndpoint: %s\n%s", texts[0], dumps[0], texts[1], dumps[1])
			}
		})
	}
}

// TestStartEndpointFails checks that a started attachment ends like AddEndpoint, whatever HNS
// answers, and however often.
func TestStartEndpointFails(t *testing.T) {
	codes := []uint32{hns.CodeObjectExists, hns.CodeNotFound, hns.CodeInvalidPolicy, hns.CodePortExists, hns.CodeAlreadyAttached, hns.CodeUnexpected}
	repaired := 0
	for _, op := range []string{"CreateEndpoint", "AttachEndpoint"} {
		for _, code := range codes {
			for times := range 4 {
				for _, effect := range []bool{false, true} {
					var texts, dumps [2]string
					for i := range 2 {
						n := newNode(t, hns.Server2022, bridgeConfig())
						spec, left := n.spec("c1", "10.0.1.7"), times
						hook := func(o, _ string) error {
							if o != op || left == 0 {
								return nil
							}
							left--
							return hns.NewError(op, code, "planted")
						}
						if n.fake.Before(hook); effect {
							n.fake.Before(nil)
							n.fake.After(hook) // the call took effect
						}
						var err error
						if i == 0 {
							_, err = n.backend.AddEndpoint(ctx, spec)
						} else {
							err = n.begin(spec).end()
						}
						texts[i], dumps[i] = fmt.Sprint(err), n.fake.Dump()
						if err == nil && times > 0 {
							repaired++
						}
					}
					if texts[0] != texts[1] || dumps[0] != dumps[1] {
						t.Errorf("%s fails %d times with %#x, takes effect %t:\nAddEndpoint: %s\n%s\nStartEndpoint: %s\n%s", op, times, code, effect, texts[0], dumps[0], texts[1], dumps[1])
					}
				}
			}
		}
	}
	if repaired == 0 {
		t.Error("nothing was repaired")
	}
}

// TestStartEndpointHangs checks that a creation or an attachment that hangs fails after its
// deadline, while others are finished. When it returns, nothing remains.
func TestStartEndpointHangs(t *testing.T) {
	for _, op := range []string{"CreateEndpoint", "AttachEndpoint"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := bridgeConfig()
				c.CallDeadline = 3 * time.Second // the others take milliseconds
				n := newNode(t, hns.Server2022, c)
				release, hangs := make(chan struct{}), make(chan struct{})
				var first atomic.Bool
				n.fake.Before(func(o, _ string) error {
					if o == op && first.CompareAndSwap(false, true) {
						close(hangs)
						<-release
					}
					return nil
				})
				specs := n.several(3)
				hung := n.begin(specs[0])
				<-hangs // before the other calls begin
				for _, b := range []begun{n.begin(specs[1]), n.begin(specs[2])} {
					if err := b.end(); err != nil {
						t.Errorf("beside: %v", err)
					}
				}
				select {
				case <-hung.done:
					t.Error("the others have waited for the call that hangs")
				default:
				}
				n.apply(peerState(specs[1], "10.0.2.7"))
				if err := hung.end(); err == nil || hns.Code(err) != hns.CodeTimeout {
					t.Errorf("hung: %v", err)
				}
				close(release)
				for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
					_, err := n.backend.Idle(ctx)
					gone := !strings.Contains(n.fake.Dump(), "endpoint c0_eth0")
					if err == nil && gone {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("what hung appeared and stays: %v\n%s", err, n.fake.Dump())
					}
				}
			})
		})
	}
}

// TestStartEndpointUnderFaults makes calls fail at random while attachments are made and policies
// are written. Attachments reported as done are complete, under deny or their policy. Nothing
// remains of the others.
func TestStartEndpointUnderFaults(t *testing.T) {
	codes := []uint32{hns.CodeObjectExists, hns.CodeNotFound, hns.CodeInvalidPolicy, hns.CodePortExists, hns.CodeUnexpected}
	for seed := range uint64(20) {
		c := bridgeConfig()
		n := newNode(t, hns.Profiles()[seed%3], c)
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(seed, 1))
		fault := func(op, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			if op != "CreateEndpoint" && op != "AttachEndpoint" || random.IntN(3) > 0 {
				return nil
			}
			return hns.NewError(op, codes[random.IntN(len(codes))], "planted")
		}
		specs := n.several(12)
		attached := make(map[string]bool)
		for len(specs) > 0 {
			n.fake.Before(fault)
			if seed%2 == 0 {
				n.fake.Before(nil)
				n.fake.After(fault) // the call took effect
			}
			var batch []begun
			for _, spec := range specs[:4] {
				if b := (begun{spec: spec, done: make(chan struct{})}); true {
					var err error
					if b.finish, err = n.backend.StartEndpoint(ctx, spec, func() { close(b.done) }); err == nil {
						batch = append(batch, b)
					}
				}
			}
			specs = specs[4:]
			for _, b := range batch {
				err := b.end()
				attached[string(b.spec.ID)] = err == nil
				if err != nil && errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
			n.fake.Before(nil)
			n.fake.After(nil)
		}
		found, err := n.backend.Endpoints(ctx)
		if err != nil {
			t.Fatal(err)
		}
		have := make(map[string]bool)
		for _, i := range found {
			have[string(i.ID)] = len(i.Problems) == 0
			if !attached[string(i.ID)] {
				t.Errorf("seed %d: %s remains of an attachment that failed", seed, i.ID)
			}
		}
		for id, ok := range attached {
			if ok && !have[id] {
				t.Errorf("seed %d: %s is reported as attached: %v", seed, id, found)
			}
		}
	}
}

// TestStartEndpointBesideNAT checks that an endpoint in creation gets changes of the NAT
// exceptions.
func TestStartEndpointBesideNAT(t *testing.T) {
	n := newNode(t, hns.Server2022, natConfig())
	specs := n.several(2)
	n.add(specs[0])
	n.apply(clusterState(specs[:1]))
	n.idle()
	release := make(chan struct{})
	n.fake.Before(func(op, _ string) error {
		if op == "CreateEndpoint" {
			<-release
		}
		return nil
	})
	b := n.begin(specs[1])
	n.apply(clusterState(specs[:1], model.Route{Node: "node2", OS: model.Linux, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")},
		Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}}))
	n.idle()
	close(release)
	if err := b.end(); err != nil {
		t.Fatal(err)
	}
	n.idle()
	for _, spec := range specs {
		if got := n.nat(spec.ID); got != withTwo {
			t.Errorf("%s has the exceptions %s, want %s", spec.ID, got, withTwo)
		}
	}
}
