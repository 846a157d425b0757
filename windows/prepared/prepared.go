// SPDX-License-Identifier: Apache-2.0

// Package prepared records the endpoints that exist before their pods do: with which DNS settings each was
// created, and which pod took it. HNS cannot rename an endpoint, so its name does not identify the pod.
//
// The record is one file, replaced as a whole before HNS is changed. It need not survive a power cut, as the
// endpoints themselves do not, so no ADD waits for the disk. It calls HNS never, and decides nothing about policy.
package prepared

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/statefile"
)

// Entry describes one prepared endpoint.
type Entry struct {
	DNS model.DNS `json:"dns,omitzero"`
	// Owner is the attachment that uses the endpoint; empty while it is unused.
	Owner model.EndpointID `json:"owner,omitempty"`
}

// Store holds the entries by the name of their endpoint. It is not safe for concurrent use.
type Store struct {
	file string
	all  map[string]Entry
}

// Open reads the entries. Without a file name they are kept in memory. A damaged file is set aside, and the
// error reports that: the Store is then empty and works. There is none if the file cannot be read: its entries may be
// of running pods, and on Windows other programs may have it open.
func Open(file string) (*Store, error) {
	s := &Store{file: file, all: make(map[string]Entry)}
	if file == "" {
		return s, nil
	}
	err := statefile.Load(file, s.decode)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if !errors.Is(err, statefile.ErrDamaged) {
		return nil, fmt.Errorf("read the list of prepared endpoints: %w: end programs that have it open", err)
	}
	s.all = make(map[string]Entry)
	return s, fmt.Errorf("read the list of prepared endpoints: %w: pods that use one get a new endpoint", err)
}

// decode replaces the entries by those of a text.
func (s *Store) decode(text []byte) error {
	var all map[string]Entry
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for name, e := range all {
		if err := e.DNS.Validate(); err != nil {
			return fmt.Errorf("endpoint %q: %w", name, err)
		}
		s.all[name] = e
	}
	return nil
}

// Get returns the entry of an endpoint, and whether there is one.
func (s *Store) Get(name string) (Entry, bool) {
	e, ok := s.all[name]
	return e, ok
}

// Unused lists the names of the endpoints without an owner, sorted.
func (s *Store) Unused() []string { return s.of("") }

// Of lists the names of the endpoints that an attachment took, sorted.
func (s *Store) Of(owner model.EndpointID) []string {
	if owner == "" {
		return nil
	}
	return s.of(owner)
}

func (s *Store) of(owner model.EndpointID) (names []string) {
	for name, e := range s.all {
		if e.Owner == owner {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Used counts the endpoints with an owner.
func (s *Store) Used() int { return len(s.all) - len(s.Unused()) }

// Put records an endpoint. After an error the earlier entry stays.
func (s *Store) Put(name string, e Entry) error {
	before, had := s.all[name]
	s.all[name] = e
	err := s.write()
	if err == nil {
		return nil
	}
	if delete(s.all, name); had {
		s.all[name] = before
	}
	return fmt.Errorf("record prepared endpoint %s: %w", name, err)
}

// Remove removes entries. Unknown names are not an error. After an error the entries stay in the file only: a
// later write removes them.
func (s *Store) Remove(names ...string) error {
	before := len(s.all)
	for _, n := range names {
		delete(s.all, n)
	}
	if len(s.all) == before {
		return nil
	}
	if err := s.write(); err != nil {
		return fmt.Errorf("update the list of prepared endpoints: %w", err)
	}
	return nil
}

// write replaces the file.
func (s *Store) write() error {
	if s.file == "" {
		return nil
	}
	if len(s.all) == 0 {
		if err := os.Remove(s.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(s.all)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(s.file+".new", s.file)
}
