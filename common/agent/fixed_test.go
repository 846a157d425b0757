// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// asking is a cluster whose pods request addresses, by number.
func asking(cidrs []string, asked map[int]string) cluster {
	return cluster{pods: 9, allowed: "0.0.0.0/0, ::/0", nodes: []*model.Node{node("node1", cidrs...), node("node2", "10.0.2.0/24")},
		edit: func(n int, p *model.Pod) { p.FixedIPs = asked[n] }}
}

func TestFixedAddresses(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		c := asking([]string{"10.0.1.0/24", "10.0.7.0/24", "fd00:1::/64"}, map[int]string{
			0: "10.0.1.9", 1: "fd00:1::77, 10.0.7.7", 2: "10.0.1.9", 4: "fd00:1::77", 5: "10.0.1.9"})
		r.agent.Publish(c.snapshot())
		r.wantIPs(0, "10.0.1.9", "fd00:1::2")
		r.wantIPs(0, "10.0.1.9", "fd00:1::2") // again
		r.wantIPs(1, "10.0.7.7", "fd00:1::77")
		_, err := r.add(2)
		wantCode(t, err, 11, "annotation isthmus.dev/addresses of pod shop/web-2 on node node1: address 10.0.1.9 is in use by pod shop/web-0 (container c0): delete that pod, or request another address")
		_, err = r.add(4)
		wantCode(t, err, 11, "address fd00:1::77 is in use by pod shop/web-1")
		r.end()
		r.start() // the records contain it
		r.agent.Publish(c.snapshot())
		_, err = r.add(2)
		wantCode(t, err, 11, "10.0.1.9 is in use by pod shop/web-0")
		r.mustDel(0)
		_, err = r.add(5)
		wantCode(t, err, 11, "annotation isthmus.dev/addresses of pod shop/web-5 on node node1: address 10.0.1.9 is in quarantine until")
		time.Sleep(30 * time.Second)
		if ips := r.mustAdd(5); ips[0] != addresses("10.0.1.9")[0] {
			t.Errorf("pod 5 has %v after the quarantine", ips)
		}
		r.end()
	})
}

// TestFixedAddressesNeedPermission requests addresses in a namespace that allows none, that allows some,
// and whose annotation is invalid.
func TestFixedAddressesNeedPermission(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		c := asking([]string{"10.0.1.0/24", "fd00:1::/64"}, map[int]string{0: "10.0.1.9", 1: "10.0.1.9,fd00:1::9", 2: "10.0.1.17"})
		refused := func(allowed string, n int, text string) {
			t.Helper()
			c.allowed = allowed
			r.agent.Publish(c.snapshot())
			_, err := r.add(n)
			wantCode(t, err, 101, text)
			r.wantOnly()
		}
		refused("", 0, "annotation isthmus.dev/addresses of pod shop/web-0: namespace shop does not allow its pods the address 10.0.1.9: "+
			"have the administrator of the namespace annotate it with isthmus.dev/allowed-addresses=10.0.1.9/32, or remove the pod's annotation")
		refused("10.0.1.16/28", 0, "does not allow its pods the address 10.0.1.9")
		refused("10.0.1.8/29", 1, "does not allow its pods the address fd00:1::9")
		refused("10.0.1.8/29", 2, "does not allow its pods the address 10.0.1.17")
		for _, bad := range []string{"10.0.1.9/24", "10.0.1.9;10.0.1.8", "any", "10.0.1.9,", "::ffff:10.0.1.9", "fe80::1%eth0", ","} {
			refused(bad, 0, "annotation isthmus.dev/allowed-addresses of namespace shop, required by pod shop/web-0: ")
		}
		r.mustAdd(3) // requests none
		r.mustDel(3)

		c.allowed = " 10.0.1.8/29 , 10.0.1.17,fd00:1::9 "
		r.agent.Publish(c.snapshot())
		r.wantIPs(1, "10.0.1.9", "fd00:1::9")
		if ips := r.mustAdd(2); ips[0] != addresses("10.0.1.17")[0] {
			t.Errorf("pod 2 has %v", ips)
		}
		c.allowed = "" // existing attachments stay
		r.agent.Publish(c.snapshot())
		r.wantIPs(1, "10.0.1.9", "fd00:1::9")
		r.end()
		r.start()
		r.agent.Publish(c.snapshot())
		if ips := r.mustAdd(2); ips[0] != addresses("10.0.1.17")[0] {
			t.Errorf("pod 2 has %v", ips)
		}
		r.wantOnly(1, 2)
		r.end()
	})
}

func TestFixedAddressesThatCannotBe(t *testing.T) {
	for asked, text := range map[string]string{
		"10.0.9.9":           "address 10.0.9.9 is in none of the pod ranges 10.0.1.0/24, fd00:1::/64: correct the annotation, or let the pod run on the node",
		"10.0.1.0":           "address 10.0.1.0 is reserved in the pod range 10.0.1.0/24",
		"10.0.1.1":           "address 10.0.1.1 is reserved",
		"10.0.1.255":         "address 10.0.1.255 is reserved",
		"10.0.1.9,10.0.1.10": "address 10.0.1.10 is the second of its family, after 10.0.1.9",
		"10.0.1.9,":          `annotation isthmus.dev/addresses of pod shop/web-0: "" is not an address`,
		"web":                `"web" is not an address: use one address per family`,
		"10.0.1.0/24":        `"10.0.1.0/24" is not an address`,
		"::ffff:10.0.1.9":    `is not an address`,
		"fe80::1%eth0":       `is not an address`,
	} {
		t.Run(asked, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.start()
				r.agent.Publish(asking([]string{"10.0.1.0/24", "fd00:1::/64"}, map[int]string{0: asked}).snapshot())
				_, err := r.add(0)
				wantCode(t, err, 101, text)
				if strings.Contains(r.fake.Dump(), "endpoint") || len(r.records()) > 0 {
					t.Errorf("something is left: %v\n%s", r.records(), r.fake.Dump())
				}
				r.mustAdd(1)
				r.end()
			})
		})
	}
}

// TestFixedAddressOfTheSamePod creates the sandbox of a pod again.
func TestFixedAddressOfTheSamePod(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		c := asking([]string{"10.0.1.0/29"}, map[int]string{0: "10.0.1.4", 1: "10.0.1.4"})
		r.agent.Publish(c.snapshot())
		r.wantIPs(0, "10.0.1.4")
		r.mustDel(0)
		again := addRequest(0)
		again.Attachment.ContainerID, again.Netns = "again", "/run/netns/again"
		r.step.Store(new(func(name string) {
			if name == "add.attach" {
				r.fake.RemoveNetNS("/run/netns/again")
			}
		}))
		_, err := r.addContext(context.Background(), again)
		wantCode(t, err, 4, "network namespace not found")
		r.step.Store(nil)
		_, err = r.add(1) // not for other pods, also after a failed attempt
		wantCode(t, err, 11, "is in quarantine until")
		again.Attachment.ContainerID, again.Netns = "third", "/run/netns/third"
		ips, err := r.addContext(context.Background(), again)
		if err != nil || ips[0] != addresses("10.0.1.4")[0] {
			t.Errorf("the third sandbox has %v, %v", ips, err)
		}
		r.end()
		r.start() // tombstones of the first stay behind the address's owner
		r.agent.Publish(c.snapshot())
		_, err = r.add(1)
		wantCode(t, err, 11, "10.0.1.4 is in use by pod shop/web-0 (container third)")
		r.end()
	})
}

func TestFixedAddressOnWindows(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.fake = dataplanetest.NewFake(model.Features{OS: model.Windows, Platform: "13.3"})
		r.start()
		r.agent.Publish(asking([]string{"10.0.1.0/24"}, map[int]string{0: "10.0.1.2", 1: "10.0.1.9,fd00::9", 2: "10.0.1.9"}).snapshot())
		_, err := r.add(0)
		wantCode(t, err, 101, "address 10.0.1.2 is reserved")
		_, err = r.add(1)
		wantCode(t, err, 101, "pods cannot have the IPv6 address fd00::9 on windows (13.3)")
		r.wantIPs(2, "10.0.1.9")
		r.end()
	})
}
