// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// interfaces are those of a host. Its addresses change.
type interfaces struct {
	addresses []netip.Addr
	err       error
}

func (i *interfaces) read() ([]netip.Addr, error) { return i.addresses, i.err }

func (i *interfaces) have(texts ...string) {
	i.addresses = nil
	for _, text := range texts {
		i.addresses = append(i.addresses, netip.MustParseAddr(text))
	}
}

// readAddresses waits until Idle has read the addresses again, and reports whether the agent must apply.
func (n *node) readAddresses() bool {
	n.t.Helper()
	time.Sleep(2 * n.config.HostAddresses.Interval) // the next read is then due
	if _, err := n.backend.Idle(ctx); err != nil {
		n.t.Fatal(err)
	}
	return n.backend.Outdated()
}

// onInterfaces calls f for a node with each use of sets, whose host has the addresses.
func onInterfaces(t *testing.T, grace time.Duration, f func(*testing.T, *node, *interfaces)) {
	for _, sets := range []windows.SetUse{windows.SetsOn, windows.SetsOff} {
		t.Run("sets="+string(sets), func(t *testing.T) {
			host := &interfaces{}
			host.have("172.16.0.5", "10.0.3.9", "fd00:5::5")
			c := dualConfig()
			c.Sets = sets
			c.HostAddresses.Read, c.HostAddresses.Interval, c.HostAddresses.Grace = host.read, time.Millisecond, grace
			f(t, newNode(t, hns.Server2022, c), host)
		})
	}
}

// TestHostAddressesReachPods checks a host with several addresses, which come and go: its programs, such as a kubelet
// that probes, may use any of them. An address of a pod counts as the pod's. What a deny list names reaches no pod, unless
// it is an address of the host now.
func TestHostAddressesReachPods(t *testing.T) {
	onInterfaces(t, time.Nanosecond, func(t *testing.T, n *node, host *interfaces) {
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		state := denying(peerState(spec, "10.0.3.3"), "172.16.0.0/24", "198.51.100.0/24")
		state.Policy.Addresses = state.Policy.Addresses.With(netip.MustParseAddr("10.0.3.9"), 0)
		expect := func(addresses ...string) {
			t.Helper()
			for _, from := range []string{"192.168.0.1", "10.0.1.2", "fd00:1::2", "172.16.0.5", "172.16.0.6", "198.51.100.3", "10.0.3.9", "fd00:5::5", "fd00:5::6"} {
				if got, want := n.passes(spec.ID, from), slices.Contains(addresses, from); got != want {
					t.Errorf("from %s: passes %t, want %t", from, got, want)
				}
			}
			if drift, err := n.backend.Audit(ctx, state); err != nil || len(drift) > 0 {
				t.Errorf("audit: %v, %v", drift, err)
			}
		}
		n.applyDenying(state)
		expect("192.168.0.1", "10.0.1.2", "fd00:1::2", "172.16.0.5", "fd00:5::5")
		if n.readAddresses() {
			t.Error("an Apply is asked for although nothing changed")
		}
		host.have("172.16.0.5", "10.0.3.9", "fd00:5::5", "192.168.0.1", "10.0.1.2") // the last ones are those of the Node and of its network
		if n.readAddresses() {
			t.Error("an Apply is asked for although the node has these addresses anyway")
		}

		host.have("172.16.0.5", "198.51.100.3", "fd00:5::6") // two came, one went
		if !n.readAddresses() {
			t.Error("new addresses need no Apply")
		}
		n.applyDenying(state)
		if n.readAddresses() { // the grace time of the lost one is over
			n.applyDenying(state)
		}
		expect("192.168.0.1", "10.0.1.2", "fd00:1::2", "172.16.0.5", "198.51.100.3", "fd00:5::6")
		writes := n.count("ModifyEndpoint")
		n.applyDenying(state)
		if got := n.count("ModifyEndpoint"); got != writes {
			t.Errorf("%d writes although nothing changed", got-writes)
		}

		n.start() // a new process reads the present ones
		n.applyDenying(state)
		expect("192.168.0.1", "10.0.1.2", "fd00:1::2", "172.16.0.5", "198.51.100.3", "fd00:5::6")
		if d, err := n.backend.ReadDecisions(ctx); err != nil || !slices.Contains(d.NodeAddresses, netip.MustParseAddr("198.51.100.3")) {
			t.Errorf("read back %v, %v", d.NodeAddresses, err)
		}
	})
}

// TestHostAddressesThatCannotBeRead checks that a failed read keeps what is known and is reported, that lost addresses
// have a grace time, and that an Apply that fails uses the new ones when it is repeated.
func TestHostAddressesThatCannotBeRead(t *testing.T) {
	onInterfaces(t, time.Hour, func(t *testing.T, n *node, host *interfaces) {
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		state := peerState(spec, "10.0.3.3")
		n.apply(state)
		if faults := n.backend.Faults(); len(faults) > 0 {
			t.Errorf("faults %q", faults)
		}
		host.err = errors.New("access is denied")
		host.have()
		if n.readAddresses() || !strings.Contains(strings.Join(n.backend.Faults(), "\n"), "the addresses of the host cannot be read, so pods deny probes from new ones: access is denied; the agent retries") {
			t.Errorf("faults %q", n.backend.Faults())
		}
		n.apply(state)
		if !n.passes(spec.ID, "172.16.0.5") {
			t.Error("a failed read has removed an address")
		}
		host.err = nil
		host.have("198.51.100.3")
		if !n.readAddresses() || len(n.backend.Faults()) > 0 {
			t.Errorf("faults %q", n.backend.Faults())
		}
		n.failing(func(op, _ string) bool { return strings.HasPrefix(op, "Modify") }, hns.CodeAccessDenied)
		if _, err := n.backend.Apply(ctx, state); err == nil {
			t.Error("no write was tried")
		}
		n.fake.Before(nil)
		n.apply(state)
		if !n.passes(spec.ID, "172.16.0.5") || !n.passes(spec.ID, "198.51.100.3") || n.passes(spec.ID, "198.51.100.4") {
			t.Errorf("in force:\n%s", n.fake.Dump())
		}
		host.have("127.0.0.1")
		if n.readAddresses() || !strings.Contains(fmt.Sprint(n.backend.Faults()), "127.0.0.1") || n.passes(spec.ID, "127.0.0.1") {
			t.Errorf("a loopback address was taken: %q", n.backend.Faults())
		}
	})
	c := bridgeConfig()
	c.HostAddresses.Grace = -1
	if c.Defaults().Validate() == nil {
		t.Error("a negative grace time was accepted")
	}
}

// TestMovedHostAddress checks an address that moves from the host to a pod of another node: it counts as the pod's from
// the State that names it on, whatever is left of the grace time.
func TestMovedHostAddress(t *testing.T) {
	onInterfaces(t, time.Hour, func(t *testing.T, n *node, host *interfaces) {
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		n.apply(peerState(spec, "10.0.3.3"))
		host.have()
		n.readAddresses()
		state := peerState(spec, "10.0.3.3")
		state.Policy.Addresses = state.Policy.Addresses.With(netip.MustParseAddr("172.16.0.5"), model.PeerClass(0))
		n.apply(state)
		if n.passes(spec.ID, "172.16.0.5") {
			t.Error("a pod passes for the node")
		}
	})
}
