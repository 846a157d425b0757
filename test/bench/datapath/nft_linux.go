// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"strings"
)

// nftables makes a node enforce the policies of a world with nftables and connection tracking. With
// set, one set holds the peers of all policies; otherwise each peer has a rule.
func (w *setups) nftables(name string, of world, set bool) error {
	setup, err := w.routed(name)
	if err != nil {
		return err
	}
	rules := nftList(of)
	if set {
		rules = nftSet(of)
	}
	return setup.node.Do(func() error { return nft(rules) })
}

// nft loads rules in the namespace of the caller.
func nft(rules string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run nft: %w\n%s", err, text)
	}
	return nil
}

const nftHead = `table ip bench {
`

// nftChain accepts known connections, evaluates accept for new ones to the server, and drops other
// packets.
func nftChain(accept string) string {
	return fmt.Sprintf(`
	chain forward {
		type filter hook forward priority 0; policy accept;
		ct state established,related accept
		ip daddr %s jump server
	}
	chain server {
%s		drop
	}
}
`, serverIPs[0], accept)
}

func nftSet(w world) string {
	var b strings.Builder
	b.WriteString(nftHead + "\tset allowed {\n\t\ttype ipv4_addr . inet_proto . inet_service\n\t\telements = {")
	seen := make(map[grant]bool)
	for _, g := range w.grants() {
		if !seen[g] {
			fmt.Fprintf(&b, " %s . tcp . %d,", g.peer, g.port)
		}
		seen[g] = true
	}
	fmt.Fprintf(&b, " %s . tcp . %d, %s . udp . %d }\n\t}\n", clientIPs[0], open, clientIPs[0], open)
	return b.String() + nftChain("\t\tip saddr . meta l4proto . th dport @allowed accept\n")
}

func nftList(w world) string {
	var b strings.Builder
	for _, g := range w.grants() {
		fmt.Fprintf(&b, "\t\tip saddr %s tcp dport %d accept\n", g.peer, g.port)
	}
	fmt.Fprintf(&b, "\t\tip saddr %s tcp dport %d accept\n\t\tip saddr %s udp dport %d accept\n", clientIPs[0], open, clientIPs[0], open)
	return nftHead + strings.TrimPrefix(nftChain(b.String()), "\n")
}
