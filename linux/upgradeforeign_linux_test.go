// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
)

// stays checks that an interface without an endpoint drops every packet.
func (u *upgradeTraffic) stays(closed string, n byte) {
	u.t.Helper()
	if u.t.Failed() {
		return
	}
	for _, to := range []string{podIPs(n)[0].String(), outsideAddr4, outsideAddr6} {
		from := u.pods[closed]
		if to == podIPs(n)[0].String() {
			from = u.outside
		}
		if err := reach(from, "tcp", to, 8080, silence); err == nil { // addresses are not resolved, either
			u.t.Errorf("pod %s is closed, and a connection to %s opens", closed, to)
		}
	}
}

// sameClassifiers checks that no interface keeps an older program on its clsact hooks.
func (u *upgradeTraffic) sameClassifiers(names ...string) {
	u.t.Helper()
	programs := make(map[[2]uint32][]string)
	u.must(u.node.Do(func() error {
		for _, name := range names {
			index, err := link.Index(name)
			if err != nil {
				return err
			}
			fromPod, toPod, err := link.FindClassifiers(index)
			if err != nil {
				return err
			}
			ids := [2]uint32{fromPod, toPod}
			programs[ids] = append(programs[ids], name)
		}
		return nil
	}))
	if len(programs) != 1 {
		u.t.Errorf("programs and their interfaces: %v", programs)
	}
}

// An agent of mode policy replaces the programs and maps of an older layout under traffic, on the interfaces of another
// plugin. A closed interface stays closed, also if it was renamed, and so does one that is closed meanwhile.
func TestForeignUpgrade(t *testing.T) {
	t.Parallel()
	onForeign(t, upgradeForeign)
}

// The same with classifiers in place of links, as on Linux before 6.6.
func TestForeignUpgradeByClassifiers(t *testing.T) {
	t.Parallel()
	onForeignHooks(t, true, upgradeForeign)
}

func upgradeForeign(t *testing.T, l *lab) {
	u := newUpgradeTraffic(l)
	for n, name := range map[byte]string{13: "c", 14: "d", 15: "e"} {
		l.echo(l.pod(name, n), 8080)
		u.pod[name] = n
	}
	l.apply(u.policies...)
	u.ready()
	for n, name := range map[byte]string{13: "c", 14: "d", 15: "e"} {
		l.allowed(l.outside, "tcp", podIPs(n)[0].String(), 8080)
		if name != "e" {
			l.delete(name)
			delete(u.pod, name)
			u.stays(name, n)
		}
	}
	l.must(l.node.Do(func() error { return rename("veth-d", "veth-x") }))
	u.begin()
	u.judge()
	u.age()
	u.watchSteps()
	l.start()
	u.judge() // by the old programs
	if faults := u.backend.Faults(); len(faults) != 1 || !strings.Contains(faults[0], "v1") {
		t.Errorf("faults before the first State: %q", faults)
	}
	if found := l.having(13); len(found) != 1 || !found[0].Closed {
		t.Errorf("the closed interface is %+v", found)
	}
	f := l.pod("f", 16) // the older layout does not know it
	for _, to := range []string{outsideAddr4, outsideAddr6, "10.1.0.12"} {
		l.denied(f, "tcp", to, 8080)
		l.denied(f, "udp", to, 8080)
	}
	u.pod["f"] = 16
	l.delete("e") // the older layout still knows it
	delete(u.pod, "e")
	u.stays("e", 15)
	u.adopt()
	u.judge()
	l.allowed(f, "tcp", outsideAddr4, 8080)
	l.denied(f, "tcp", "10.1.0.12", 8080)
	for n, name := range map[byte]string{13: "c", 14: "d", 15: "e"} {
		u.stays(name, n)
	}
	u.settled()
	u.sameClassifiers("veth-a", "veth-c", "veth-e", "veth-f", "veth-x")
	l.again() // as any restart
	u.adopt()
	u.judge()
	for n, name := range map[byte]string{13: "c", 14: "d", 15: "e"} {
		u.stays(name, n)
	}
	u.settled()
	u.end()
}

// An agent of mode policy that is killed at any step of an upgrade loses nothing, and the next one completes it.
func TestForeignUpgradeIsKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir = true, "bridged" })
	u := newUpgradeTraffic(l)
	l.pod("c", 13)
	l.delete("c")
	u.ready()
	u.begin()
	u.killAtEveryStep("decide egress beside older", "replace programs of a closed interface")
	u.judge()
	u.stays("c", 13)
	u.end()
}

// An interface that gets the name and the index of a closed one during an upgrade stays without programs.
func TestForeignUpgradeAndReusedIndex(t *testing.T) {
	t.Parallel()
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir, c.ByClassifiers = true, "bridged", true })
	u := newUpgradeTraffic(l)
	l.pod("c", 13)
	l.delete("c")
	u.ready()
	u.age()
	index, replaced := 0, false
	u.step = func(name string) {
		if name != "migrate late flows" || replaced {
			return
		}
		var err error
		if index, err = link.Index("veth-c"); err == nil {
			attrs := netlink.LinkAttrs{Name: "veth-c", Index: index}
			err = errors.Join(netlink.LinkDel(&netlink.GenericLink{LinkAttrs: attrs}), netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "other"}))
		}
		if err != nil {
			t.Errorf("replace veth-c: %v", err)
		}
		replaced = true
	}
	l.start()
	u.adopt()
	if !replaced {
		t.Fatal("veth-c was not replaced")
	}
	l.must(l.node.Do(func() error {
		fromPod, toPod, err := link.FindClassifiers(index)
		if fromPod != 0 || toPod != 0 {
			t.Errorf("interface %d has programs %d and %d", index, fromPod, toPod)
		}
		return err
	}))
	u.settled()
}
