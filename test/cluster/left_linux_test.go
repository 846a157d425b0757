// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// TestNothingIsLeft checks that a closed cluster leaves no process, mount, file, interface, program, map or link.
// Other tests may run at the same time: the test checks only objects of this cluster.
func TestNothingIsLeft(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	before := interfaceNames(t)
	var m made
	t.Run("cluster", func(t *testing.T) {
		c, _ := start(t)
		awaitLinks(t, c, map[string]int{"linux1": 2, "linux2": 2})
		// The agents may be replacing programs.
		eventually(t, func() (err error) { m, err = madeBy(c); return err })
		text := fmt.Sprint(m.left())
		for _, want := range []string{"program ", "map ", "link ", "directory ", "cmdline mentions", "mountinfo mentions"} {
			if !strings.Contains(text, want) {
				t.Errorf("while the cluster runs, %q is not found in:\n%s", want, text)
			}
		}
	})
	if len(m.programs) < 4 || len(m.maps) < 10 || len(m.links) < 4 {
		t.Fatalf("the cluster had programs %v, maps %v, links %v: want more", m.programs, m.maps, m.links)
	}
	eventually(t, m.left) // the kernel frees programs and maps a little later
	for _, name := range interfaceNames(t) {
		if !slices.Contains(before, name) {
			t.Errorf("interface %s is left", name)
		}
	}
}

func interfaceNames(t *testing.T) (names []string) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// made identifies the objects of a cluster: a directory, and kernel IDs.
type made struct {
	dir      string
	programs []ebpf.ProgramID
	maps     []ebpf.MapID
	links    []link.ID
}

// madeBy lists the pinned objects of a cluster, and the maps of its programs.
func madeBy(c *cluster.Cluster) (made, error) {
	m := made{dir: filepath.Dir(c.BPFFS())}
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, filepath.WalkDir(filepath.Join(c.BPFFS(), n.Name), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || d.IsDir():
				return err
			case filepath.Base(filepath.Dir(path)) == "links":
				return m.addLink(path)
			}
			return m.addMap(path)
		}))
	}
	return m, errors.Join(errs...)
}

// addMap adds a pinned map.
func (m *made) addMap(path string) error {
	pinned, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return err
	}
	id, _ := info.ID()
	m.maps = append(m.maps, id)
	return nil
}

// addLink adds a pinned link, its program and the maps of the program.
func (m *made) addLink(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return err
	}
	m.links, m.programs = append(m.links, info.ID), append(m.programs, info.Program)
	p, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return fmt.Errorf("program %d of %s: %w", info.Program, path, err)
	}
	defer p.Close()
	about, err := p.Info()
	if err != nil {
		return err
	}
	ids, _ := about.MapIDs()
	m.maps = append(m.maps, ids...)
	return nil
}

// left returns an error that names all objects that still exist.
func (m *made) left() error {
	var errs []error
	exists := func(what string, id any, err error) {
		if err == nil {
			errs = append(errs, fmt.Errorf("%s %v is left", what, id))
		} else if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s %v: %w", what, id, err))
		}
	}
	for _, id := range m.programs {
		p, err := ebpf.NewProgramFromID(id)
		exists("program", id, err)
		p.Close()
	}
	for _, id := range m.maps {
		found, err := ebpf.NewMapFromID(id)
		exists("map", id, err)
		found.Close()
	}
	for _, id := range m.links {
		l, err := link.NewFromID(id)
		exists("link", id, err)
		if err == nil {
			l.Close()
		}
	}
	_, err := os.Stat(m.dir)
	exists("directory", m.dir, err)
	return errors.Join(append(errs, m.mentioned())...)
}

// mentioned returns an error if a mount or a process has the directory in its description.
func (m *made) mentioned() error {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	errs := []error{err}
	for _, path := range append(paths, "/proc/self/mountinfo") {
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), m.dir) {
			errs = append(errs, fmt.Errorf("%s mentions %s", path, m.dir))
		}
	}
	return errors.Join(errs...)
}
