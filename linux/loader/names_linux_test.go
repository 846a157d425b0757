// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/test/netns"
)

// An interface that gets another name while pins move keeps its programs, and the next call completes the move.
func TestNamesChangeMeanwhile(t *testing.T) {
	p := newPlaces(t)
	if !p.path.HasTCX() {
		t.Skip("clsact hooks stay on an interface without pins")
	}
	ns, err := netns.New(filepath.Join(t.TempDir(), "ns"))
	p.must(err)
	t.Cleanup(func() { ns.Close() })
	var x, y int
	p.must(ns.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "x"}, PeerName: "y"}); err != nil {
			return err
		}
		for name, index := range map[string]*int{"x": &x, "y": &y} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			*index = l.Attrs().Index
			if err := p.path.Attach(name, *index); err != nil {
				return err
			}
		}
		return nil
	}))
	asked := 0
	// x becomes z after the first question, and y becomes x.
	nameOf := func(index int) (string, error) {
		if index == y {
			return "x", nil
		}
		if asked++; asked == 1 {
			return "x", nil
		}
		return "z", nil
	}
	if err := p.path.FollowNames(nameOf); err == nil {
		t.Error("pins move to a name that has pins of another interface")
	}
	if index, err := p.path.LinkedTo("x"); err != nil || index != x {
		t.Errorf("pins x belong to interface %d, %v, want %d", index, err, x)
	}
	p.must(p.path.FollowNames(nameOf))
	for name, want := range map[string]int{"x": y, "z": x} {
		if index, err := p.path.LinkedTo(name); err != nil || index != want {
			t.Errorf("pins %s belong to interface %d, %v, want %d", name, index, err, want)
		}
	}
	all, err := p.path.Attached()
	if names := slices.Sorted(maps.Keys(all)); err != nil || !slices.Equal(names, []string{"x", "z"}) {
		t.Errorf("pins %q, %v, want x and z", names, err)
	}
}
