// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"os/exec"
	"regexp"
	"strings"
)

// volatile are numbers that change by themselves: timers of bridges, counters of rules.
var volatile = regexp.MustCompile(`_timer +[0-9.]+|packets [0-9]+ bytes [0-9]+|expires [0-9]+sec`)

// picture returns what the nodes have besides Isthmus, by node and command.
func (b *bench) picture() map[string]string {
	b.t.Helper()
	all := make(map[string]string)
	for _, n := range b.cluster.Nodes {
		for _, command := range []string{
			"ip -d -o link", "ip -o addr", "ip route show table all", "ip -6 route show table all", "ip rule", "ip -6 rule", "nft list ruleset", "tc qdisc",
			"grep -rs . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward",
		} {
			words := strings.Fields(command)
			err := n.NS.Do(func() error {
				out, err := exec.Command(words[0], words[1:]...).Output()
				if words[0] == "grep" { // some files cannot be read
					err = nil
				}
				all[n.Name+": "+command] = volatile.ReplaceAllString(string(out), "")
				return err
			})
			if err != nil {
				b.t.Fatalf("%s on %s: %v", command, n.Name, err)
			}
		}
	}
	return all
}
