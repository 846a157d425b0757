// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AuditClassifiers describes faults of the programs on the clsact hooks of an interface. A
// program of ours may be missing, may have another ID, or may run after a filter that could
// pass packets before it.
func AuditClassifiers(index int, fromPod, toPod uint32) (problems []string, err error) {
	for parent, want := range classifierHooks(Classifiers{int(fromPod), int(toPod)}) {
		filters, err := filtersOf(index, parent)
		if err != nil {
			return nil, err
		}
		name := "from_pod"
		if parent == netlink.HANDLE_MIN_EGRESS {
			name = "to_pod"
		}
		switch {
		case len(filters) == 0:
			problems = append(problems, name+" is not attached to its clsact hook")
		case !isClassifier(filters[0]):
			problems = append(problems, name+" runs after another filter, or is missing")
		case filters[0].(*netlink.BpfFilter).Id != want:
			problems = append(problems, fmt.Sprintf("%s is program %d, not %d", name, filters[0].(*netlink.BpfFilter).Id, want))
		}
	}
	return problems, nil
}

// RepairClassifiers attaches our programs before all other filters of a pod's interface. It
// removes filters of other owners with the priority of ours.
func RepairClassifiers(index int, c Classifiers) error {
	for parent := range classifierHooks(c) {
		filters, err := filtersOf(index, parent)
		if err != nil {
			return err
		}
		for _, f := range filters {
			if isClassifier(f) || f.Attrs().Priority != ClassifierPriority {
				continue
			}
			if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove a filter that runs before ours from interface %d: %w", index, err)
			}
		}
	}
	return SetClassifiers(index, c)
}

// filtersOf lists the filters of a hook in the order in which they run; none if the interface
// has no clsact.
func filtersOf(index int, parent uint32) ([]netlink.Filter, error) {
	filters, err := Whole(func() ([]netlink.Filter, error) {
		return netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, parent)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list filters of interface %d: %w", index, err)
	}
	return filters, nil
}

func isClassifier(f netlink.Filter) bool {
	b, ok := f.(*netlink.BpfFilter)
	return ok && b.Name == classifierName && b.DirectAction && b.Priority == ClassifierPriority && b.Handle == classifierHandle
}
