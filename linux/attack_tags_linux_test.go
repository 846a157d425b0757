// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/denylist"
)

// A denied source does not hide behind VLAN tags: the kernel removes any number of tags that name no VLAN.
func TestAttackPriorityTags(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newLabWith(t, func(c *linux.Config) {
			change(c)
			c.XDP = denylist.Devices{Names: []string{"eth0"}}
		})
		c := l.pod("c", 13)
		l.deny = []*model.DenyList{{Name: "denied", Entries: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:bad::/48")}}}
		l.apply()
		for l.idle() {
		}
		l.must(l.node.Do(func() error { return sysctl("ipv4/conf/all/rp_filter", "0") }))
		wo, wc, up := l.wire(l.outside, "eth0"), l.wire(c, "eth0"), l.macIn(l.node, "eth0")
		v := &volley{l: l}
		for i, f := range addressSets {
			denied := []string{"203.0.113.7", "2001:db8:bad::7"}[i]
			datagram := func(src string, tags int) func(string) []byte {
				return func(w string) []byte { return tagged(udpFrame(wo, up, src, f.c, 9, 9, w), tags) }
			}
			for tags := range 6 {
				v.try(wo, wc, fmt.Sprintf("%s with %d tags", denied, tags), datagram(denied, tags))
			}
			v.held(control{wo, wc, datagram(f.out, 0)}, control{wo, wc, datagram(f.out, 2)})
		}
	})
}

// tagged returns a frame with tags of VLAN 0.
func tagged(frame []byte, tags int) []byte {
	return append(append(bytes.Clone(frame[:12]), bytes.Repeat([]byte{0x81, 0, 0, 0}, tags)...), frame[12:]...)
}
