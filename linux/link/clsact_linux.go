// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// clsact is the qdisc of the hooks of an interface.
func clsact(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

// BeforeClsact returns the length of the queue of an interface, and whether it has a clsact qdisc. The kernel sets a
// length of 0 to its default when a qdisc is added.
func BeforeClsact(index int) (length int, has bool, err error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return 0, false, fmt.Errorf("find interface %d: %w", index, err)
	}
	all, err := Whole(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	if err != nil {
		return 0, false, fmt.Errorf("list qdiscs of interface %d: %w", index, err)
	}
	return l.Attrs().TxQLen, slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }), nil
}

// DropClsact removes the clsact qdisc of an interface, and gives its queue the length of before. It does nothing if the interface
// is gone, or while a hook has filters.
func DropClsact(index, length int) error {
	now, has, err := BeforeClsact(index)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	for parent := range classifierHooks(Classifiers{}) {
		if !has {
			break
		}
		filters, err := Whole(func() ([]netlink.Filter, error) { return netlink.FilterList(l, parent) })
		if err != nil {
			return fmt.Errorf("list classifiers of interface %d: %w", index, err)
		}
		if len(filters) > 0 {
			return nil
		}
	}
	if has {
		if err := netlink.QdiscDel(clsact(index)); err != nil {
			return fmt.Errorf("remove clsact from interface %d: %w", index, err)
		}
	}
	if now == length {
		return nil
	}
	if err := netlink.LinkSetTxQLen(l, length); err != nil {
		return fmt.Errorf("set the queue length of interface %d: %w", index, err)
	}
	return nil
}
