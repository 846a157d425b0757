// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

// volatile is what changes by itself: timers of bridges, and addresses whose check for duplicates has ended.
var volatile = regexp.MustCompile(`_timer +[0-9.]+|tentative `)

// seen returns what the tools of the system show of the node and its pods.
func (l *lab) seen(pods ...string) string {
	l.t.Helper()
	var text strings.Builder
	for _, ns := range append([]*netns.NS{l.node}, l.namespaces(pods)...) {
		for _, command := range []string{"ip -d -o link", "ip -o addr", "tc -d qdisc", "ip route show table all", "ip -6 route show table all", "ip rule",
			"ip neigh show nud permanent"} {
			words := strings.Fields(command)
			l.must(ns.Do(func() error {
				out, err := exec.Command(words[0], words[1:]...).Output()
				text.WriteString(ns.Path() + ": " + command + "\n" + volatile.ReplaceAllString(string(out), "") + "\n")
				return err
			}))
		}
	}
	return text.String()
}

func (l *lab) namespaces(pods []string) (all []*netns.NS) {
	for _, name := range pods {
		all = append(all, l.pods[name])
	}
	return all
}

// After removal, links and qdiscs are as before, also where programs are on clsact hooks: a qdisc goes unless it was
// there before, or another program has filters on it. That holds for chained, adopted, and closed interfaces, and after a restart.
func TestForeignRemoval(t *testing.T) {
	t.Parallel()
	for hook, clsact := range hooksHere(t) {
		for name := range plugins {
			t.Run(hook+" "+name, func(t *testing.T) {
				l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir, c.ByClassifiers = true, name, clsact })
				pods := []string{"a", "b", "c", "d", "e"}
				for i, pod := range pods {
					l.running(pod, byte(11+i))
				}
				l.must(l.node.Do(func() error { return withClsact("veth-c") }))
				l.idleUntilQuiet()
				before := l.seen(pods...)
				l.must(l.add("a", 11))
				l.must(l.adopt("b", l.having(12)[0].Handle, 12))
				l.must(l.add("c", 13))
				l.apply()
				l.must(l.add("d", 14))
				l.delete("d")
				l.must(l.node.Do(func() error {
					return l.backend.CloseInterface(context.Background(), l.having(15)[0].Handle, "default/e/1")
				}))
				l.must(l.backend.Close())
				l.start()
				l.must(l.add("a", 11))
				l.idleUntilQuiet()
				if during := l.seen(pods...); clsact && strings.Count(during, "clsact") != len(pods) {
					t.Errorf("programs are not on clsact hooks of all pods:\n%s", during)
				}
				l.must(l.backend.Close())
				cfg := l.config()
				for range 2 {
					l.must(l.node.Do(func() error { return linux.Remove(context.Background(), cfg) }))
					after := l.seen(pods...)
					for line := range strings.Lines(after) {
						if !strings.Contains(before, line) {
							t.Errorf("new after removal: %s", line)
						}
					}
					if len(after) != len(before) {
						t.Errorf("before:\n%s\nafter removal:\n%s", before, after)
					}
				}
				if left, err := os.ReadDir(cfg.StateDir); err != nil || len(left) > 0 {
					t.Errorf("left in the state directory: %v, %v", left, err)
				}
			})
		}
	}
}

// withClsact gives an interface a qdisc, as another program does.
func withClsact(name string) error {
	veth, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.QdiscAdd(clsact(veth.Attrs().Index))
}

// A program that another component attached in the meantime stays, with the qdisc.
func TestForeignRemovalKeepsFilters(t *testing.T) {
	l := newLabWith(t, func(c *linux.Config) { c.PolicyOnly, c.StateDir, c.ByClassifiers = true, "routed", true })
	l.pod("a", 11)
	other, err := program(ebpf.SchedCLS, -1) // TC_ACT_UNSPEC: the next program decides
	l.must(err)
	defer other.Close()
	filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: 7, Protocol: unix.ETH_P_ALL},
		Fd: other.FD(), Name: "other", DirectAction: true}
	l.must(l.node.Do(func() error {
		veth, err := netlink.LinkByName("veth-a")
		if err != nil {
			return err
		}
		filter.LinkIndex = veth.Attrs().Index
		return netlink.FilterAdd(filter)
	}))
	l.must(l.backend.Close())
	l.must(l.node.Do(func() error { return linux.Remove(context.Background(), l.config()) }))
	l.must(l.node.Do(func() error {
		left, err := link.Whole(func() ([]netlink.Filter, error) {
			return netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: filter.LinkIndex}}, netlink.HANDLE_MIN_EGRESS)
		})
		if len(left) != 1 || left[0].Attrs().Priority != 7 {
			t.Errorf("filters after removal: %v", left)
		}
		return err
	}))
}
