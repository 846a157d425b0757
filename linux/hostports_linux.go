// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/link"
)

// hostPortPeriod is how often the table of host ports is compared with what it
// should be.
const hostPortPeriod = 5 * time.Second

// hostPorts is what leads from the node's ports to pods.
type hostPorts struct {
	forwards map[model.EndpointID][]fabric.Forward
	// written tells that the forwards have been put in force once. Before, not
	// every endpoint of an earlier agent may have been adopted, and what it left
	// must not be taken away.
	written bool
	stale   bool
	due     time.Time
}

// note remembers the host ports of an endpoint for the next write.
func (h *hostPorts) note(spec dataplane.EndpointSpec) {
	var all []fabric.Forward
	for _, p := range spec.HostPorts {
		for _, ip := range spec.IPs {
			if p.Is(ip.Is6()) {
				all = append(all, fabric.Forward{HostPort: p, To: ip})
			}
		}
	}
	if len(all) > 0 {
		h.forwards[spec.ID], h.stale = all, true
	}
}

// forget drops those of an endpoint, at once if that is safe.
func (h *hostPorts) forget(id model.EndpointID) error {
	if h.forwards[id] == nil {
		return nil
	}
	delete(h.forwards, id)
	h.stale = true
	if !h.written {
		return nil
	}
	return h.write(time.Now())
}

// write puts the forwards in force.
func (h *hostPorts) write(now time.Time) error {
	var all []fabric.Forward
	var errs []error
	for id, forwards := range h.forwards {
		all = append(all, forwards...)
		if err := link.AcceptLoopback(id); err != nil {
			errs = append(errs, &dataplane.EndpointError{ID: id, Err: err})
		}
	}
	_, err := fabric.SetHostPorts(all)
	if err != nil {
		for id := range h.forwards {
			errs = append(errs, &dataplane.EndpointError{ID: id, Err: err})
		}
		if len(h.forwards) == 0 {
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	h.written, h.stale, h.due = true, false, now.Add(hostPortPeriod)
	return errors.Join(errs...)
}

// apply puts changes in force.
func (h *hostPorts) apply(now time.Time) error {
	if h.written && !h.stale {
		return nil
	}
	return h.write(now)
}

// tend puts right what somebody else changed.
func (h *hostPorts) tend(now time.Time) error {
	if !h.written || now.Before(h.due) {
		return nil
	}
	return h.write(now)
}
