// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Host is the System of this node. No agent may run meanwhile.
type Host struct {
	h     *netlink.Handle
	store *endpoint.Store
	boot  string
	// links is the directory of the pinned links of programs.
	links string
}

var _ System = (*Host)(nil)

// NewHost returns the System. links is the directory in which the agent pins the links of programs.
func NewHost(store *endpoint.Store, links string) (*Host, error) {
	boot, err := link.BootID()
	if err != nil {
		return nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &Host{h: h, store: store, boot: boot, links: links}, nil
}

// Close releases what the Host holds.
func (h *Host) Close() { h.h.Close() }

// Do implements System.
func (h *Host) Do(p *Plan, s Step) error {
	switch s.Kind {
	case SetSysctl:
		return setSysctl(s.Path, s.Value)
	case KeepGateway:
		return h.addGateways(p)
	case OwnRoute:
		return h.setRoute(p.Routes[s.Route], int(link.RouteProtocol))
	case KeepConf:
		return rename(s.Path, s.Path+AsideSuffix)
	case RemoveBridge:
		return h.removeBridge(p)
	}
	pod := &p.Pods[s.Pod]
	if s.Kind == WriteRecord {
		return h.exchange(pod.Was, pod.Record)
	}
	port, err := h.port(p, pod)
	if port == nil || err != nil {
		return err
	}
	switch s.Kind {
	case RoutePod:
		return h.routePod(p, pod, port)
	case ConfigurePod:
		return h.byGateway(p, pod)
	case LeaveBridge:
		return h.leave(p, pod, port)
	case RenamePort:
		return h.rename(port, pod.Port, pod.NewName, link.Alias(pod.Record.ID()))
	}
	return fmt.Errorf("step %q is not known", s.Kind)
}

// Undo implements System.
func (h *Host) Undo(p *Plan, s Step) error {
	switch s.Kind {
	case SetSysctl:
		return setSysctl(s.Path, s.Was)
	case KeepGateway:
		return h.dropGateways(p)
	case OwnRoute:
		return h.setRoute(p.Routes[s.Route], p.Routes[s.Route].Protocol)
	case KeepConf:
		if _, err := os.Lstat(s.Path); err == nil {
			return nil // it was never moved, or another component wrote it again
		}
		return rename(s.Path+AsideSuffix, s.Path)
	case RemoveBridge:
		return h.makeBridge(p)
	}
	pod := &p.Pods[s.Pod]
	if s.Kind == WriteRecord {
		return h.exchange(pod.Record, pod.Was)
	}
	port, err := h.port(p, pod)
	if port == nil || err != nil {
		return err
	}
	switch s.Kind {
	case RoutePod:
		return h.unroutePod(p, pod, port)
	case ConfigurePod:
		return h.onLink(p, pod)
	case LeaveBridge:
		return h.enter(p, pod, port)
	case RenamePort:
		return h.rename(port, pod.NewName, pod.Port, "")
	}
	return fmt.Errorf("step %q is not known", s.Kind)
}

// restarted reports whether the node has restarted since the plan was made. Its interfaces are gone then, and others may have
// their indexes. Plans of older versions do not say.
func (h *Host) restarted(p *Plan) bool { return p.Boot != "" && p.Boot != h.boot }

// port returns the host end of a pod; nil if the pod is gone.
func (h *Host) port(p *Plan, pod *Pod) (netlink.Link, error) {
	if h.restarted(p) {
		return nil, nil
	}
	l, err := h.h.LinkByIndex(pod.Index)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", pod.Port, err)
	}
	if l.Type() != "veth" || l.Attrs().ParentIndex != pod.PeerIndex {
		return nil, nil // another interface has the index
	}
	return l, nil
}

// exchange replaces a record. A pod whose record is gone was removed meanwhile.
func (h *Host) exchange(was, next endpoint.Record) error {
	records, problems, err := h.store.Load()
	if err = errors.Join(append(problems, err)...); err != nil {
		return err
	}
	for _, r := range records {
		if (r.ID() != was.ID() && r.ID() != next.ID()) || r.State == endpoint.Released {
			continue
		}
		if err := h.store.Put(next); err != nil {
			return err
		}
		if was.ID() != next.ID() {
			return h.store.Remove(was.ID())
		}
		return nil
	}
	return nil
}

// rename moves a file. It is done already if only the target exists.
func rename(from, to string) error {
	_, missing := os.Lstat(from)
	_, target := os.Lstat(to)
	switch {
	case errors.Is(missing, fs.ErrNotExist) && target == nil:
		return nil
	case missing != nil:
		return missing
	case target == nil:
		return fmt.Errorf("%s exists: remove it", to)
	}
	return os.Rename(from, to)
}

func setSysctl(path, value string) error {
	err := link.WriteSysctls([]link.Sysctl{{Path: path, Value: value}})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // of a device that is gone
	}
	return err
}

// rename gives the host end another name and alias, and the pins of its programs likewise.
func (h *Host) rename(port netlink.Link, from, to, alias string) error {
	if err := h.h.LinkSetAlias(port, alias); err != nil {
		return fmt.Errorf("set alias of %s: %w", from, err)
	}
	if port.Attrs().Name != to {
		if err := h.h.LinkSetName(port, to); err != nil {
			return fmt.Errorf("rename %s to %s: %w", from, to, err)
		}
	}
	entries, err := os.ReadDir(h.links)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list pinned links: %w", err)
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), from+"-")
		if !ours || strings.Contains(rest, "-") {
			continue
		}
		if err := os.Rename(filepath.Join(h.links, e.Name()), filepath.Join(h.links, to+"-"+rest)); err != nil {
			return fmt.Errorf("rename pinned link: %w", err)
		}
	}
	return nil
}
