// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
)

// deletionsAtOnce is the number of pairs that are deleted in parallel. The kernel makes each
// deletion wait for grace periods, and each uses a thread.
const deletionsAtOnce = 32

// DeletePairs removes the pairs of endpoints, and the objects that limit their bandwidth.
// Missing objects are not an error. It returns one result for each ID, in the same order.
func DeletePairs(ids []model.EndpointID) []error {
	errs := make([]error, len(ids))
	var running errgroup.Group
	running.SetLimit(deletionsAtOnce)
	for i, id := range ids {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE) // for the namespace of this thread
		if err != nil {
			errs[i] = fmt.Errorf("open netlink: %w", err)
			continue
		}
		running.Go(func() error {
			defer h.Close()
			errs[i] = errors.Join(deleteByName(h, HostName(id)), deleteByName(h, SenderName(id)))
			return nil
		})
	}
	running.Wait()
	return errs
}

// DeletePair removes one pair.
func DeletePair(id model.EndpointID) error { return DeletePairs([]model.EndpointID{id})[0] }

// DeleteByName removes a pair by the name of the host end.
func DeleteByName(name string) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	return deleteByName(h, name)
}

func deleteByName(h *netlink.Handle, name string) error {
	l, err := h.LinkByName(name)
	if isGone(err) {
		return nil
	}
	if err == nil {
		err = h.LinkDel(l)
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}
