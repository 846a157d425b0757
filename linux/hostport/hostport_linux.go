// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Every hostPortGlance the agent checks that the table of host ports exists and lists the
// sockets of the node. Every hostPortPeriod it compares the whole table.
const (
	hostPortGlance = time.Second
	hostPortPeriod = 5 * time.Second
)

// hostPorts manages the redirection of node ports to pods.
type hostPorts struct {
	fromNode fabric.FromNode
	step     func(string)
	// repaired is called when another process has removed the table.
	repaired func()

	forwards map[model.EndpointID][]fabric.Forward
	// sockets are those of the node on ports that lead to pods.
	sockets []model.HostPort
	// unlisted is the error of the last attempt to list the sockets.
	unlisted error
	// written says that the redirections have been written once. Before that, some endpoints of
	// an earlier agent may not be adopted yet, and their redirections must stay.
	written       bool
	stale         bool
	glanced, full time.Time // times of the last check of each kind
}

// Listening implements dataplane.SocketLister.
func (b *Backend) Listening() ([]model.HostPort, error) { return fabric.Listening() }

// note records the host ports of an endpoint for the next write.
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

// forget removes the host ports of an endpoint, at once if that is safe.
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

// write writes the redirections. Interfaces accept loopback addresses only while the table
// exists, because the table drops what pods send to them, and only if their pods need it. So
// the sysctls close first and open last.
func (h *hostPorts) write(now time.Time) error {
	h.list()
	want := fabric.HostPorts{Spared: h.sockets, FromNode: h.fromNode}
	open := make(map[model.EndpointID]bool)
	for id, forwards := range h.forwards {
		want.Forwards = append(want.Forwards, forwards...)
		if slices.ContainsFunc(forwards, func(f fabric.Forward) bool { return f.TakesLoopback(h.fromNode) }) {
			open[id] = true
		}
	}
	h.step("refuse loopback addresses")
	errs := []error{link.RefuseLoopback(open)}
	h.step("write host ports")
	if _, err := fabric.SetHostPorts(want); err != nil {
		return errors.Join(append(errs, h.concern(err), link.RefuseLoopback(nil))...)
	}
	for id := range open {
		h.step("accept loopback addresses")
		if err := link.AcceptLoopback(id); err != nil {
			errs = append(errs, &dataplane.EndpointError{ID: id, Err: err})
		}
	}
	h.written, h.stale, h.full, h.glanced = true, false, now, now
	return errors.Join(errs...)
}

// concern assigns an error to the endpoints that have host ports.
func (h *hostPorts) concern(err error) error {
	if len(h.forwards) == 0 {
		return err
	}
	var errs []error
	for id := range h.forwards {
		errs = append(errs, &dataplane.EndpointError{ID: id, Err: err})
	}
	return errors.Join(errs...)
}

// apply writes pending changes.
func (h *hostPorts) apply(now time.Time) error {
	if h.written && !h.stale {
		return nil
	}
	return h.write(now)
}

// tend repairs what other processes changed, and finds new sockets.
func (h *hostPorts) tend(now time.Time) error {
	switch {
	case !h.written || now.Before(h.glanced.Add(hostPortGlance)):
		return nil
	case !now.Before(h.full.Add(hostPortPeriod)):
		return h.write(now)
	case len(h.forwards) == 0:
		return nil
	}
	h.glanced = now
	there, err := fabric.HasHostPorts()
	if err != nil {
		return err
	}
	if !there {
		h.repaired()
		return errors.Join(link.RefuseLoopback(nil), h.write(now))
	}
	if h.list() {
		return h.write(now)
	}
	return nil
}

// list lists the sockets of the node on ports that lead to pods, and reports whether they
// changed. On an error it keeps the previous list.
func (h *hostPorts) list() (changed bool) {
	var found []model.HostPort
	if len(h.forwards) > 0 {
		var all []model.HostPort
		if all, h.unlisted = fabric.Listening(); h.unlisted != nil {
			return false
		}
		for _, s := range all {
			if h.leads(s) && !slices.Contains(found, s) {
				found = append(found, s)
			}
		}
		slices.SortFunc(found, func(a, b model.HostPort) int { return a.Compare(b) })
	}
	changed = !slices.Equal(found, h.sockets)
	h.sockets = found
	return changed
}

// leads reports whether packets to the address of a socket go to a pod.
func (h *hostPorts) leads(socket model.HostPort) bool {
	for _, forwards := range h.forwards {
		if slices.ContainsFunc(forwards, func(f fabric.Forward) bool { return f.Overlaps(socket) }) {
			return true
		}
	}
	return false
}

// problems reports the host ports on which a process of the node listens, too.
func (h *hostPorts) problems(pods map[model.EndpointID]model.PodID) (all []string) {
	if h.unlisted != nil {
		all = append(all, fmt.Sprintf("host ports of pods: cannot check for sockets of the node on the same ports: %s", h.unlisted))
	}
	for id, forwards := range h.forwards {
		for _, s := range h.sockets {
			if i := slices.IndexFunc(forwards, func(f fabric.Forward) bool { return f.TakenBy(s) }); i >= 0 {
				all = append(all, fmt.Sprintf("host port %s of pod %s: a process of the node listens on %s, too: connections from elsewhere go to the pod, those of the node to the process: stop the process, or delete the pod and give it another hostPort",
					forwards[i].HostPort, pods[id], s))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// start closes the sysctls that an earlier agent opened, if the table was flushed since.
func (h *hostPorts) start() error {
	there, err := fabric.HasHostPorts()
	if err != nil || there {
		return nil // apply reports the error if there are host ports
	}
	return link.RefuseLoopback(nil)
}
