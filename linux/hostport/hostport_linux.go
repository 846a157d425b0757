// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Every quickPeriod Sync checks that the table exists and lists the sockets of the node. Every fullPeriod
// it compares the whole table.
const (
	quickPeriod = time.Second
	fullPeriod  = 5 * time.Second
)

// HostPorts redirects ports of the node to pods.
type HostPorts struct {
	fromNode FromNode
	host     dataplane.Host

	forwards map[model.EndpointID][]forward
	// pods are the pods of the endpoints in forwards.
	pods map[model.EndpointID]model.PodID
	// sockets are those of the node on ports that lead to pods.
	sockets []model.HostPort
	// unlisted is the error of the last attempt to list the sockets.
	unlisted error
	// written is true if the redirections have been written once. Before that, some endpoints of
	// an earlier agent may not be adopted yet, and their redirections must stay.
	written       bool
	stale         bool
	glanced, full time.Time // times of the last check of each kind
}

var (
	_ dataplane.Component        = (*HostPorts)(nil)
	_ dataplane.EndpointObserver = (*HostPorts)(nil)
)

// New returns the component. It closes the sysctls that an earlier agent opened, if the table was flushed
// since.
func New(fromNode FromNode, host dataplane.Host) (*HostPorts, error) {
	h := &HostPorts{fromNode: fromNode, host: host, forwards: make(map[model.EndpointID][]forward), pods: make(map[model.EndpointID]model.PodID)}
	exists, err := HasTable()
	if err != nil || exists {
		return h, nil // Apply reports the error if there are host ports
	}
	return h, link.RefuseLoopback(nil)
}

// Remove removes the table of host ports.
func Remove() error {
	_, err := setTable(content{})
	return err
}

// EndpointAdded implements dataplane.EndpointObserver. It records the host ports for the next Apply.
func (h *HostPorts) EndpointAdded(spec dataplane.EndpointSpec) {
	var all []forward
	for _, p := range spec.HostPorts {
		for _, ip := range spec.IPs {
			if p.Is(ip.Is6()) {
				all = append(all, forward{HostPort: p, To: ip})
			}
		}
	}
	if len(all) > 0 {
		h.forwards[spec.ID], h.pods[spec.ID], h.stale = all, spec.Pod, true
	}
}

// RemoveEndpoint implements dataplane.EndpointObserver. It removes the host ports at once if that is safe.
func (h *HostPorts) RemoveEndpoint(id model.EndpointID) error {
	if h.forwards[id] == nil {
		return nil
	}
	delete(h.forwards, id)
	delete(h.pods, id)
	h.stale = true
	if !h.written {
		return nil
	}
	return h.write(time.Now())
}

// write writes the redirections. Interfaces accept loopback addresses only while the table
// exists, because the table drops what pods send to them, and only if their pods need it. So
// the sysctls close first and open last.
func (h *HostPorts) write(now time.Time) error {
	h.list()
	want := content{Exempt: h.sockets, FromNode: h.fromNode}
	open := make(map[model.EndpointID]bool)
	for id, forwards := range h.forwards {
		want.Forwards = append(want.Forwards, forwards...)
		if slices.ContainsFunc(forwards, func(f forward) bool { return f.takesLoopback(h.fromNode) }) {
			open[id] = true
		}
	}
	h.host.Step("refuse loopback addresses")
	errs := []error{link.RefuseLoopback(open)}
	h.host.Step("write host ports")
	if _, err := setTable(want); err != nil {
		return errors.Join(append(errs, h.concern(err), link.RefuseLoopback(nil))...)
	}
	for id := range open {
		h.host.Step("accept loopback addresses")
		if err := link.AcceptLoopback(id); err != nil {
			errs = append(errs, &dataplane.EndpointError{ID: id, Err: err})
		}
	}
	h.written, h.stale, h.full, h.glanced = true, false, now, now
	return errors.Join(errs...)
}

// concern assigns an error to the endpoints that have host ports.
func (h *HostPorts) concern(err error) error {
	if len(h.forwards) == 0 {
		return err
	}
	var errs []error
	for id := range h.forwards {
		errs = append(errs, &dataplane.EndpointError{ID: id, Err: err})
	}
	return errors.Join(errs...)
}

// Apply implements dataplane.Component. It writes pending changes; the State has no section for them.
func (h *HostPorts) Apply(context.Context, *model.State) ([]model.Unsupported, error) {
	if h.written && !h.stale {
		return nil, nil
	}
	return nil, h.write(time.Now())
}

// Sync implements dataplane.Component. It repairs what other processes changed, and finds new sockets.
func (h *HostPorts) Sync(_ context.Context, now time.Time) error {
	switch {
	case !h.written || now.Before(h.glanced.Add(quickPeriod)):
		return nil
	case !now.Before(h.full.Add(fullPeriod)):
		return h.write(now)
	case len(h.forwards) == 0:
		return nil
	}
	h.glanced = now
	exists, err := HasTable()
	if err != nil {
		return err
	}
	if !exists {
		h.host.Repaired("create the nftables table of host ports")
		return errors.Join(link.RefuseLoopback(nil), h.write(now))
	}
	if h.list() {
		return h.write(now)
	}
	return nil
}

// list lists the sockets of the node on ports that lead to pods, and reports whether they
// changed. On an error it keeps the previous list.
func (h *HostPorts) list() (changed bool) {
	var found []model.HostPort
	if len(h.forwards) > 0 {
		var all []model.HostPort
		if all, h.unlisted = Listening(); h.unlisted != nil {
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
func (h *HostPorts) leads(socket model.HostPort) bool {
	for _, forwards := range h.forwards {
		if slices.ContainsFunc(forwards, func(f forward) bool { return f.Overlaps(socket) }) {
			return true
		}
	}
	return false
}

// Problems reports the host ports on which a process of the node listens, too.
func (h *HostPorts) Problems() (all []string) {
	if h.unlisted != nil {
		all = append(all, fmt.Sprintf("host ports of pods: cannot check for sockets of the node on the same ports: %s", h.unlisted))
	}
	for id, forwards := range h.forwards {
		for _, s := range h.sockets {
			if i := slices.IndexFunc(forwards, func(f forward) bool { return f.TakenBy(s) }); i >= 0 {
				all = append(all, fmt.Sprintf("host port %s of pod %s: a process of the node also listens on %s and gets the connections of the node itself: stop the process, or delete the pod and give it another hostPort",
					forwards[i].HostPort, h.pods[id], s))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// PathModes returns nil: host ports have one mode.
func (h *HostPorts) PathModes() []dataplane.PathMode { return nil }

// Close does nothing: the table stays.
func (h *HostPorts) Close() error { return nil }
