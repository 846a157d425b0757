// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"github.com/isthmus-net/isthmus/linux/foreign"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Pins have the names of interfaces. Another process may rename an interface of another CNI plugin, and a plugin may give its
// name to the next one.

// freeName makes the name of an interface free for its pins: those of another interface that had the name move.
func (b *Backend) freeName(end foreign.HostEnd) error {
	index, err := b.path.LinkedTo(end.Name)
	if err != nil || index == 0 || index == end.Index {
		return err
	}
	return b.followNames()
}

// followNames moves pins to the names that the interfaces have now, and records these names. Pins of an older layout stay
// until the end of the upgrade.
func (b *Backend) followNames() error {
	if b.path.Older() != "" {
		return nil
	}
	b.step("follow names")
	if err := b.path.FollowNames(link.NameOf); err != nil {
		return err
	}
	found, err := b.ends.List()
	if err != nil {
		return err
	}
	for _, f := range found {
		was, _ := b.ends.Get(f.ID)
		if was.Name == f.Name || !loader.Pinnable(f.Name) {
			continue
		}
		was.Name = f.Name
		if err := b.ends.Put(f.ID, was); err != nil {
			return err
		}
	}
	closed := make(map[string]int)
	for name, index := range b.ends.closed {
		now, err := link.NameOf(index)
		if err != nil {
			return err
		}
		if loader.Pinnable(now) {
			closed[now] = index
		} else if closed[name] == 0 {
			closed[name] = index
		}
	}
	b.ends.closed = closed
	return nil
}

// drops reports whether the programs are on an interface that was closed. Another one may have got its name or its index: plugins give
// the interfaces of a pod one name. One that they move from the namespace of a pod keeps a free index.
func (b *Backend) drops(name string, index int) (bool, error) {
	if b.path.Older() != "" {
		return true, nil // until the end of an upgrade the programs may be older ones
	}
	on, err := b.path.Linked(name, index)
	if err == nil && !on && !b.tcx {
		on, err = link.HasClassifiers(index)
	}
	return on, err
}

// sweepClosed removes the pins of closed interfaces that are gone. Without its pins, an interface that was only
// renamed would be open.
func (b *Backend) sweepClosed() error {
	renamed := false
	for name, index := range b.ends.closed {
		now, err := link.NameOf(index)
		drops := false
		if err == nil && now != "" {
			drops, err = b.drops(name, index)
		}
		if err != nil {
			return err
		}
		if drops {
			renamed = renamed || now != name && loader.Pinnable(now)
			continue
		}
		linked, err := b.path.LinkedTo(name)
		if err == nil && linked == 0 { // otherwise another interface has the name now
			err = b.path.Detach(name)
		}
		if err != nil {
			return err
		}
		delete(b.ends.closed, name)
	}
	if !renamed {
		return nil
	}
	return b.followNames()
}
