// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Registry records which interface belongs to which endpoint. The kernel reuses the index of an interface before the node
// restarts if a process asks for it, or moves an interface with that index to the node, so an entry also names the peer. It
// is not safe for concurrent use.
type Registry struct {
	file string
	boot string
	ends map[model.EndpointID]HostEnd
	// held are the claims of interfaces that drop every packet, by handle.
	held map[string]string
	// queues are the lengths of queues before this agent added a clsact qdisc, by the index of the interface.
	queues map[int]int
	// unsaved is true while the file lacks a change.
	unsaved bool
}

// content is the content of the file.
type content struct {
	Boot string                       `json:"boot"`
	Ends map[model.EndpointID]HostEnd `json:"interfaces"`
	Held map[string]string            `json:"held,omitempty"`
	// Queues are the lengths of queues before the agent added a clsact qdisc, by the index of the interface.
	Queues map[int]int `json:"queues,omitempty"`
}

// maxFile bounds the file: 4096 entries of about 300 bytes.
const maxFile = 4 << 20

// fileName is the name of the registry in its directory.
const fileName = "interfaces.json"

// Open reads the registry in a directory, which it creates. A registry from before the node started is
// empty, also a damaged one. A damaged one of this boot is an error.
func Open(dir string) (*Registry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of the interfaces: %w", err)
	}
	return Read(dir)
}

// Read reads the registry as Open does, without creating the directory.
func Read(dir string) (*Registry, error) {
	boot, err := link.BootID()
	if err != nil {
		return nil, err
	}
	r := &Registry{file: filepath.Join(dir, fileName), boot: boot, ends: make(map[model.EndpointID]HostEnd),
		held: make(map[string]string), queues: make(map[int]int)}
	text, err := os.ReadFile(r.file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the interfaces of pods: %w", err)
	}
	c, err := decode(text)
	if err != nil && beforeStart(r.file) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the interfaces of pods in %s: %w: remove the file and restart the pods of this node", r.file, err)
	}
	if c.Boot == r.boot {
		r.ends, r.held, r.queues = c.Ends, c.Held, c.Queues
	}
	return r, nil
}

// beforeStart reports whether a file was written before the node started. A loss of power may have damaged it, as writes
// are not flushed.
func beforeStart(path string) bool {
	var up unix.Timespec
	info, err := os.Stat(path)
	return err == nil && unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil && info.ModTime().Before(time.Now().Add(-time.Duration(up.Nano())))
}

// decode parses and validates the content of the file.
func decode(text []byte) (content, error) {
	c := content{}
	if len(text) > maxFile {
		return c, fmt.Errorf("it has %d bytes, more than %d", len(text), maxFile)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, err
	}
	if c.Ends == nil {
		c.Ends = make(map[model.EndpointID]HostEnd)
	}
	if c.Held == nil {
		c.Held = make(map[string]string)
	}
	if c.Queues == nil {
		c.Queues = make(map[int]int)
	}
	for id, e := range c.Ends {
		if e.Index <= 0 || e.PeerIndex <= 0 || e.Bridge < 0 || e.Name == "" || len(e.Name) >= unix.IFNAMSIZ || strings.ContainsAny(e.Name, "/.") || len(e.PodMAC) != 6 || len(e.HostMAC) != 6 || !ofEachFamily(e.Addresses) || !e.Return.valid() {
			return c, fmt.Errorf("the interface of endpoint %q is not valid", id)
		}
	}
	return c, nil
}

// ofEachFamily reports whether a list has at most one plain address of each IP version.
func ofEachFamily(all []netip.Addr) bool {
	for i, a := range all {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || i > 0 && a.Is6() == all[0].Is6() {
			return false
		}
	}
	return len(all) <= 2
}

// Put records the host end of an endpoint. A full disk does not stop it if only the name, the bridge or its MAC changed, which
// the next process reads from the kernel.
func (r *Registry) Put(id model.EndpointID, e HostEnd) error {
	old, known := r.ends[id]
	if known && old.same(e) {
		return nil
	}
	next := maps.Clone(r.ends)
	next[id] = e
	old.Name, old.Bridge, old.HostMAC = e.Name, e.Bridge, e.HostMAC
	if known && old.same(e) {
		return r.drop(next, r.held)
	}
	return r.write(next, r.held)
}

// Remove forgets an endpoint. A full disk does not stop it.
func (r *Registry) Remove(id model.EndpointID) error {
	if _, ok := r.ends[id]; !ok {
		return nil
	}
	next := maps.Clone(r.ends)
	delete(next, id)
	return r.drop(next, r.held)
}

// Get returns the host end of an endpoint, and whether it is recorded.
func (r *Registry) Get(id model.EndpointID) (HostEnd, bool) {
	e, ok := r.ends[id]
	return e, ok
}

// Hold records the claim for which an interface drops every packet. "" removes it. A claim that cannot be written
// is an error, and is kept in memory until Flush writes it.
func (r *Registry) Hold(handle, claim string) error {
	if r.held[handle] == claim {
		return nil
	}
	next := maps.Clone(r.held)
	if next[handle] = claim; claim == "" {
		delete(next, handle)
		return r.drop(r.ends, next)
	}
	r.held, r.unsaved = next, true
	return r.write(r.ends, next)
}

// AddsClsact records that the agent is about to add a clsact qdisc to an interface whose queue has a length. Remove then
// removes it. A full disk does not stop the agent, as policy is more than a qdisc that stays.
func (r *Registry) AddsClsact(index, length int) error {
	next := maps.Clone(r.queues)
	for known := range next {
		if there, err := link.Exists(known); err == nil && !there {
			delete(next, known)
		}
	}
	next[index] = length
	r.queues = next
	return r.drop(r.ends, r.held)
}

// Flush writes what an earlier change could not write. On a full disk it does nothing, and a later call tries again.
func (r *Registry) Flush() error {
	if !r.unsaved {
		return nil
	}
	if err := r.write(r.ends, r.held); !isFull(err) {
		return err
	}
	return nil
}

// isFull reports whether a write failed for lack of space or quota.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// All returns the recorded host ends.
func (r *Registry) All() map[model.EndpointID]HostEnd { return maps.Clone(r.ends) }

// drop is write for removals and other changes that must need no space. On a full disk it keeps the content in memory, until Flush
// or another change writes it. If the process ends before, the next one finds the interface of a removal without a record,
// and removes it again.
func (r *Registry) drop(ends map[model.EndpointID]HostEnd, held map[string]string) error {
	err := r.write(ends, held)
	if !isFull(err) {
		return err
	}
	r.ends, r.held, r.unsaved = ends, held, true
	return nil
}

// write replaces the file atomically.
func (r *Registry) write(ends map[model.EndpointID]HostEnd, held map[string]string) error {
	text, err := json.Marshal(content{Boot: r.boot, Ends: ends, Held: held, Queues: r.queues})
	if err != nil {
		return fmt.Errorf("encode the interfaces of pods: %w", err)
	}
	tmp := r.file + ".new"
	if err := os.WriteFile(tmp, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the interfaces of pods: %w", err)
	}
	if err := os.Rename(tmp, r.file); err != nil {
		return fmt.Errorf("write the interfaces of pods: %w", err)
	}
	r.ends, r.held, r.unsaved = ends, held, false
	return nil
}

func (e HostEnd) same(o HostEnd) bool {
	return e.Name == o.Name && e.Index == o.Index && e.PeerIndex == o.PeerIndex && e.Bridge == o.Bridge && e.Return == o.Return &&
		slices.Equal(e.Addresses, o.Addresses) && slices.Equal(e.PodMAC, o.PodMAC) && slices.Equal(e.HostMAC, o.HostMAC)
}

// Found is the host end of an endpoint as it is now.
type Found struct {
	ID model.EndpointID
	HostEnd
	// Problem describes why policy cannot be enforced on the interface any more; "" if it can.
	Problem string
}

// List returns the recorded host ends that still exist, by endpoint. It describes them as they are now,
// except PodMAC.
func (r *Registry) List() ([]Found, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	links, err := link.Whole(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	byIndex := make(map[int]netlink.Link, len(links))
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	var all []Found
	for _, id := range slices.Sorted(maps.Keys(r.ends)) {
		was := r.ends[id]
		l, ok := byIndex[was.Index]
		if !ok || l.Type() != "veth" || l.Attrs().ParentIndex != was.PeerIndex {
			continue
		}
		f := Found{ID: id}
		if f.HostEnd, err = describe(h, l); err != nil {
			f.Problem = err.Error()
		}
		f.HostEnd = f.Returning(was)
		f.PodMAC, f.Addresses = was.PodMAC, was.Addresses
		all = append(all, f)
	}
	return all, nil
}

// Remove removes the registry in a directory, after the qdiscs that agents added to interfaces. Their programs must be
// detached. A missing registry is not an error, and a damaged one leaves qdiscs behind.
func Remove(dir string) error {
	if dir == "" {
		return nil
	}
	if r, err := Read(dir); err == nil {
		var errs []error
		for index, length := range r.queues {
			errs = append(errs, link.DropClsact(index, length))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the registry of interfaces: %w", err)
	}
	return nil
}
