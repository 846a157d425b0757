// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/netfilter"
)

// table is the table that SetRule owns, for both IP versions.
const table = "isthmus-egress"

// The priorities of its chains: before the host stack reassembles fragments, and after DNAT, before the filters of other
// software.
const beforeFragments, afterDNAT = -450, -160

// chains are its chains. The first drops forged sources. The last is for IPVS, which sends packets
// to LOCAL_OUT that it received on LOCAL_IN.
var chains = []struct {
	name     string
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
}{
	{"prerouting", nftables.ChainHookPrerouting, beforeFragments},
	{"forward", nftables.ChainHookForward, afterDNAT},
	{"input", nftables.ChainHookInput, afterDNAT},
	{"output", nftables.ChainHookOutput, afterDNAT},
}

// SetRule makes nftables drop the packets that one of the pinned programs matches, by
// chain: prerouting, forward, input and output. It replaces earlier programs; each IP version changes at
// once. It needs the kernel modules nft_compat and xt_bpf.
func SetRule(pins map[string][]string) error {
	infos := make(map[string][]xt.Unknown)
	for chain, paths := range pins {
		for _, pin := range paths {
			info, err := matchPinned(pin)
			if err != nil {
				return err
			}
			infos[chain] = append(infos[chain], info)
		}
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		c := &nftables.Conn{}
		t := &nftables.Table{Family: family, Name: table}
		c.AddTable(t) // ensures that there is a table to delete
		c.DelTable(t)
		c.AddTable(t)
		for _, e := range chains {
			chain := c.AddChain(&nftables.Chain{Name: e.name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: e.hook,
				Priority: nftables.ChainPriorityRef(e.priority)})
			for i := range infos[e.name] {
				c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
					&expr.Match{Name: "bpf", Rev: 1, Info: &infos[e.name][i]}, &expr.Verdict{Kind: expr.VerdictDrop}}})
			}
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("set nftables table %s: %w: does the kernel have the modules nft_compat and xt_bpf?", table, err)
		}
	}
	return nil
}

// HasRule reports whether the rules exist and their chains have no other rules: another
// process may flush or add some.
func HasRule() (bool, error) {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		c := &nftables.Conn{}
		t := &nftables.Table{Family: family, Name: table}
		for _, chain := range chains {
			rules, err := c.GetRules(t, &nftables.Chain{Name: chain.name, Table: t})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return false, fmt.Errorf("list rules of nftables table %s: %w", table, err)
			}
			if len(rules) == 0 || slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return !dropsMatched(r) }) {
				return false, nil
			}
		}
	}
	return true, nil
}

// dropsMatched reports whether a rule drops the packets that a program matches, as
// SetRule creates it.
func dropsMatched(r *nftables.Rule) bool {
	if len(r.Exprs) != 2 {
		return false
	}
	match, matches := r.Exprs[0].(*expr.Match)
	verdict, decides := r.Exprs[1].(*expr.Verdict)
	return matches && match.Name == "bpf" && decides && verdict.Kind == expr.VerdictDrop
}

// DropRule removes the filter. A missing one is not an error, nor is a kernel without nftables.
func DropRule() error {
	if has, err := netfilter.Available(); !has {
		return err
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		c := &nftables.Conn{}
		c.DelTable(&nftables.Table{Family: family, Name: table})
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("remove nftables table %s: %w", table, err)
		}
	}
	return nil
}

// matchPinned returns struct xt_bpf_info_v1 of linux/netfilter/xt_bpf.h: mode, number of
// instructions, descriptor, path or instructions, and a pointer of the kernel.
func matchPinned(pin string) (xt.Unknown, error) {
	const modePinned, pathLength = 1, 512
	if len(pin) >= pathLength {
		return nil, fmt.Errorf("pin %s: rules accept paths of at most %d bytes: give --bpffs a shorter directory", pin, pathLength-1)
	}
	info := make(xt.Unknown, 8+pathLength+8)
	binary.NativeEndian.PutUint16(info, modePinned)
	copy(info[8:], pin)
	return info, nil
}
