// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// decisions is the form of a State in a file. Rows are shared by number.
type decisions struct {
	Node      string
	Endpoints map[model.EndpointID]model.EndpointState
	Tables    map[string]sides
	// Rows are the verdicts by class of ports: "a" allows, "d" denies.
	Rows      []string
	Addresses map[netip.Addr]model.PeerClass
	Prefixes  []model.PrefixClass
	Ports     []model.PortRange
}

// sides are both directions of a table; -1 as default means a row that denies.
type sides [2]struct {
	Default int
	Rows    map[model.PeerClass]int
}

// installedFile is the form of Installed in a file.
type installedFile struct {
	State *decisions      `json:",omitempty"`
	Lists json.RawMessage `json:",omitempty"`
	// NodeAddresses are as in Installed.
	NodeAddresses []netip.Addr `json:",omitempty"`
}

// MarshalJSON returns a form that shares rows.
func (i Installed) MarshalJSON() ([]byte, error) {
	f := installedFile{Lists: i.Lists, NodeAddresses: i.NodeAddresses}
	if i.State != nil {
		f.State = encodeState(i.State)
	}
	return json.Marshal(f)
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (i *Installed) UnmarshalJSON(raw []byte) error {
	var f installedFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return err
	}
	i.Lists, i.NodeAddresses = f.Lists, f.NodeAddresses
	if f.State == nil {
		return nil
	}
	var err error
	i.State, err = decodeState(f.State)
	return err
}

func encodeState(s *model.State) *decisions {
	p := &s.Policy
	d := &decisions{Node: s.Node, Endpoints: p.Endpoints, Tables: make(map[string]sides), Addresses: make(map[netip.Addr]model.PeerClass),
		Prefixes: p.Prefixes, Ports: p.Ports}
	for a, c := range p.Addresses.All() {
		d.Addresses[a] = c
	}
	numbers := make(map[string]int)
	number := func(r *model.Row) int {
		if r == nil || len(r.Cells) == 0 {
			return -1
		}
		text := make([]byte, len(r.Cells))
		for i, c := range r.Cells {
			text[i] = 'd'
			if c.Verdict == model.Allow {
				text[i] = 'a'
			}
		}
		n, ok := numbers[string(text)]
		if !ok {
			n = len(d.Rows)
			numbers[string(text)] = n
			d.Rows = append(d.Rows, string(text))
		}
		return n
	}
	for id, t := range p.Tables {
		var both sides
		for n := range t.Sides {
			both[n].Default, both[n].Rows = number(t.Sides[n].Default), make(map[model.PeerClass]int)
			for class, r := range t.Sides[n].Rows.All() {
				both[n].Rows[class] = number(r)
			}
		}
		d.Tables[id.String()] = both
	}
	return d
}

// errBundle is the base of errors about the content of a Bundle.
var errBundle = errors.New("not a bundle of isthmusctl, or a damaged one")

func decodeState(d *decisions) (*model.State, error) {
	var rows []*model.Row
	for _, text := range d.Rows {
		if len(text) > model.MaxPortClasses {
			return nil, fmt.Errorf("%w: a row has %d classes of ports, at most %d", errBundle, len(text), model.MaxPortClasses)
		}
		r := &model.Row{Cells: make([]model.Decision, len(text))}
		for i := range text {
			if text[i] == 'a' {
				r.Cells[i].Verdict = model.Allow
			}
		}
		rows = append(rows, r)
	}
	deny := &model.Row{}
	row := func(n int) (*model.Row, error) {
		if n == -1 {
			return deny, nil
		}
		if n < 0 || n >= len(rows) {
			return nil, fmt.Errorf("%w: no row %d", errBundle, n)
		}
		return rows[n], nil
	}
	s := &model.State{Node: d.Node, Policy: model.PolicyState{Endpoints: d.Endpoints, Tables: make(map[model.TableID]*model.Table),
		Addresses: immutable.MakeMap(d.Addresses), Prefixes: slices.Clone(d.Prefixes), Ports: d.Ports}}
	slices.SortFunc(s.Policy.Prefixes, func(a, b model.PrefixClass) int { return model.ComparePrefixes(a.Prefix, b.Prefix) })
	for text, both := range d.Tables {
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != len(model.TableID{}) {
			return nil, fmt.Errorf("%w: table %q", errBundle, text)
		}
		t := &model.Table{ID: model.TableID(raw)}
		for n := range both {
			list := make(map[model.PeerClass]*model.Row)
			for class, number := range both[n].Rows {
				if list[class], err = row(number); err != nil {
					return nil, err
				}
			}
			if t.Sides[n].Default, err = row(both[n].Default); err != nil {
				return nil, err
			}
			t.Sides[n].Rows = immutable.MakeMap(list)
		}
		s.Policy.Tables[t.ID] = t
	}
	return s, nil
}
