// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Classifiers are the two programs of an endpoint, by file descriptor.
type Classifiers struct{ FromPod, ToPod int }

// ClassifierPriority is the priority of our filters, before those of others.
const ClassifierPriority = 1

// Name, priority and handle identify our filters.
const (
	classifierName   = "isthmus"
	classifierHandle = 1
)

func classifierHooks(c Classifiers) map[uint32]int {
	return map[uint32]int{netlink.HANDLE_MIN_INGRESS: c.FromPod, netlink.HANDLE_MIN_EGRESS: c.ToPod}
}

func classifier(index int, parent uint32, program int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: classifierHandle, Priority: ClassifierPriority, Protocol: unix.ETH_P_ALL},
		Fd:          program, Name: classifierName, DirectAction: true,
	}
}

func addClsact(h *netlink.Handle, index int) error {
	if err := h.QdiscAdd(clsact(index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact to interface %d: %w", index, err)
	}
	return nil
}

// SetClassifiers attaches programs to the clsact hooks of an interface, in place of the present
// ones. Unlike a tcx link it does not wait for an RCU grace period, and works before Linux 6.6.
func SetClassifiers(index int, c Classifiers) error {
	var filters []*netlink.BpfFilter
	for parent, program := range classifierHooks(c) {
		filters = append(filters, classifier(index, parent, program))
	}
	return setFilters(index, filters...)
}

// setFilters replaces filters on the clsact hooks of an interface, which it adds if needed.
func setFilters(index int, filters ...*netlink.BpfFilter) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	if err := addClsact(h, index); err != nil {
		return err
	}
	for _, f := range filters {
		if err := h.FilterReplace(f); err != nil {
			return fmt.Errorf("set classifier of interface %d: %w", index, err)
		}
	}
	return nil
}

// The filter of a device that leads to other nodes, where other software may have filters, too.
const nodeHandle, nodePrio = 73, 73

func nodeClassifier(index, program int) *netlink.BpfFilter {
	f := classifier(index, netlink.HANDLE_MIN_INGRESS, program)
	f.Handle, f.Priority = nodeHandle, nodePrio
	return f
}

// SetNodeClassifier attaches a program to the ingress hook of a device that leads to other
// nodes, in place of an earlier one of ours.
func SetNodeClassifier(index, program int) error {
	return setFilters(index, nodeClassifier(index, program))
}

// HasNodeClassifier reports whether a device has it.
func HasNodeClassifier(index int) (bool, error) {
	filters, err := Whole(func() ([]netlink.Filter, error) {
		return netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, netlink.HANDLE_MIN_INGRESS)
	})
	if err != nil {
		return false, fmt.Errorf("list classifiers of interface %d: %w", index, err)
	}
	return slices.ContainsFunc(filters, isNodeClassifier), nil
}

func isNodeClassifier(f netlink.Filter) bool {
	b, ok := f.(*netlink.BpfFilter)
	return ok && b.Name == classifierName && b.Priority == nodePrio
}

// DropNodeClassifiers detaches it from all devices except some.
func DropNodeClassifiers(except map[int]bool) error {
	links, err := Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if except[l.Attrs().Index] {
			continue
		}
		filters, err := Whole(func() ([]netlink.Filter, error) { return netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS) })
		if err != nil {
			continue // the device has no such hook, or is gone
		}
		if slices.ContainsFunc(filters, isNodeClassifier) {
			if err := netlink.FilterDel(nodeClassifier(l.Attrs().Index, -1)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("remove classifier of %s: %w", l.Attrs().Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// HasClassifiers reports whether both hooks have a program of ours.
func HasClassifiers(index int) (bool, error) {
	fromPod, toPod, err := FindClassifiers(index)
	return fromPod != 0 && toPod != 0, err
}

// FindClassifiers returns the kernel IDs of our programs on an interface; 0 means none.
func FindClassifiers(index int) (fromPod, toPod uint32, err error) {
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	for parent, id := range map[uint32]*uint32{netlink.HANDLE_MIN_INGRESS: &fromPod, netlink.HANDLE_MIN_EGRESS: &toPod} {
		filters, err := Whole(func() ([]netlink.Filter, error) { return netlink.FilterList(l, parent) })
		if err != nil {
			return 0, 0, fmt.Errorf("list classifiers of interface %d: %w", index, err)
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok && b.Name == classifierName && b.DirectAction {
				*id = uint32(b.Id)
			}
		}
	}
	return fromPod, toPod, nil
}

// Classified returns the indexes of veth interfaces that have programs of pods, by name.
func Classified() (map[string]int, error) {
	links, err := Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	all := make(map[string]int)
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		fromPod, toPod, err := FindClassifiers(l.Attrs().Index)
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return nil, err
		}
		if fromPod != 0 || toPod != 0 {
			all[l.Attrs().Name] = l.Attrs().Index
		}
	}
	return all, nil
}

// DropAllClassifiers detaches the programs of all pods from interfaces that another CNI plugin made.
func DropAllClassifiers() error {
	all, err := Classified()
	if err != nil {
		return err
	}
	var errs []error
	for _, index := range all {
		errs = append(errs, DropClassifiers(index))
	}
	return errors.Join(errs...)
}

// DropClassifiers detaches the programs. Missing programs are not an error.
func DropClassifiers(index int) error {
	for parent := range classifierHooks(Classifiers{}) {
		err := netlink.FilterDel(classifier(index, parent, -1))
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove classifier of interface %d: %w", index, err)
		}
	}
	return nil
}
