// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// egressTable is the table that SetEgressFilter owns, in both families.
const egressTable = "isthmus-egress"

// egressPriority puts its chains before the filters of others.
const egressPriority = -160

// SetEgressFilter makes nftables drop what one of the pinned programs matches on
// its way through the node or to it, in place of the programs that did so before;
// each family changes at once. It needs the kernel's modules nft_compat and xt_bpf.
func SetEgressFilter(pins ...string) error {
	infos := make([]xt.Unknown, len(pins))
	for i, pin := range pins {
		var err error
		if infos[i], err = matchPinned(pin); err != nil {
			return err
		}
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		c := &nftables.Conn{}
		t := &nftables.Table{Family: family, Name: egressTable}
		c.AddTable(t) // so that there is one to delete
		c.DelTable(t)
		c.AddTable(t)
		for name, hook := range map[string]*nftables.ChainHook{"forward": nftables.ChainHookForward, "input": nftables.ChainHookInput} {
			chain := c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook,
				Priority: nftables.ChainPriorityRef(egressPriority)})
			for i := range infos {
				c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
					&expr.Match{Name: "bpf", Rev: 1, Info: &infos[i]}, &expr.Verdict{Kind: expr.VerdictDrop}}})
			}
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("set table %s of nftables: %w: are the kernel's modules nft_compat and xt_bpf there?", egressTable, err)
		}
	}
	return nil
}

// HasEgressFilter reports whether the rules are there: others may flush them.
func HasEgressFilter() (bool, error) {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		c := &nftables.Conn{}
		t := &nftables.Table{Family: family, Name: egressTable}
		for _, name := range []string{"forward", "input"} {
			rules, err := c.GetRules(t, &nftables.Chain{Name: name, Table: t})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return false, fmt.Errorf("list rules of table %s of nftables: %w", egressTable, err)
			}
			if len(rules) == 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

// DropEgressFilter takes it off. What is not there is no error.
func DropEgressFilter() error {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		c := &nftables.Conn{}
		c.DelTable(&nftables.Table{Family: family, Name: egressTable})
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("remove table %s of nftables: %w", egressTable, err)
		}
	}
	return nil
}

// matchPinned is struct xt_bpf_info_v1 of linux/netfilter/xt_bpf.h: mode, number
// of instructions, descriptor, path or instructions, and a pointer of the kernel.
func matchPinned(pin string) (xt.Unknown, error) {
	const modePinned, pathLength = 1, 512
	if len(pin) >= pathLength {
		return nil, fmt.Errorf("pin %s: rules take paths of at most %d bytes: give --bpffs a shorter directory", pin, pathLength-1)
	}
	info := make(xt.Unknown, 8+pathLength+8)
	binary.NativeEndian.PutUint16(info, modePinned)
	copy(info[8:], pin)
	return info, nil
}
