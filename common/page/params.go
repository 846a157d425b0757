// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	// maxValue is the length of a parameter in bytes: two names of Kubernetes and an address fit.
	maxValue = 600
	// maxPage bounds the number of a part of a list.
	maxPage = 1 << 20
)

// params are the parameters of a page, in the part of an address behind the question mark.
type params struct {
	// rows, columns and find are texts that the shown names contain.
	rows, columns, find string
	// namespace is that of the shown policies; empty for all.
	namespace string
	// row, column and part are numbers of parts of lists, from 1.
	row, column, part int
	// from and to are workloads, or ends of a flow; port and protocol are those of a flow.
	from, to, port, protocol string
	v6                       bool
}

// parse reads the parameters of a page, which accepts those with the given names.
func parse(raw string, names ...string) (params, error) {
	p := params{row: 1, column: 1, part: 1}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return p, fmt.Errorf("the address of the page is not valid behind the question mark: %w", err)
	}
	for name, list := range values {
		switch {
		case !slices.Contains(names, name):
			return p, fmt.Errorf("parameter %q: this page has %s", shorten(name, 40), strings.Join(names, ", "))
		case len(list) > 1:
			return p, fmt.Errorf("parameter %q: give it once", name)
		case len(list[0]) > maxValue:
			return p, fmt.Errorf("parameter %q: give at most %d bytes", name, maxValue)
		}
		if err := p.set(name, strings.TrimSpace(list[0])); err != nil {
			return p, fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	return p, nil
}

// set sets a parameter.
func (p *params) set(name, value string) error {
	number := map[string]*int{"row": &p.row, "column": &p.column, "part": &p.part}[name]
	text := map[string]*string{"rows": &p.rows, "columns": &p.columns, "find": &p.find, "namespace": &p.namespace, "from": &p.from, "to": &p.to,
		"port": &p.port, "protocol": &p.protocol}[name]
	switch {
	case number != nil:
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxPage {
			return fmt.Errorf("%q: give a number from 1 to %d", value, maxPage)
		}
		*number = n
	case text != nil:
		*text = value
	default: // family
		if value != "4" && value != "6" {
			return fmt.Errorf("%q: give 4 or 6", value)
		}
		p.v6 = value == "6"
	}
	return nil
}

// only returns the port that a matrix is about; nil for all ports.
func (p *params) only() (*Port, error) {
	if p.port == "" && p.protocol == "" {
		return nil, nil
	}
	protocol, err := p.parseProtocol()
	if err != nil {
		return nil, err
	}
	if p.port == "" && protocol == model.TCP {
		return nil, nil // the form's default without a port
	}
	n, err := ends.Port(p.port, protocol, nil)
	if err != nil {
		return nil, fmt.Errorf("port: %w", err)
	}
	return &Port{protocol, n}, nil
}

// parseProtocol reads the protocol, which is TCP if none is given.
func (p *params) parseProtocol() (model.Protocol, error) {
	if p.protocol == "" {
		return model.TCP, nil
	}
	return model.ParseProtocol(p.protocol)
}

// flow reads the flow that a page explains.
func (p *params) flow(s *model.Snapshot) (model.Flow, error) {
	var f model.Flow
	from, err := ends.InUse(s, p.from)
	if err != nil {
		return f, fmt.Errorf("from: %w", err)
	}
	to, err := ends.InUse(s, p.to)
	if err != nil {
		return f, fmt.Errorf("to: %w", err)
	}
	if f.Protocol, err = p.parseProtocol(); err != nil {
		return f, err
	}
	if f.Src, f.Dst, err = ends.SameFamily(from, to, f.Protocol); err != nil {
		return f, err
	}
	if f.Port, err = ends.Port(p.port, f.Protocol, s.Owners().Pods[f.Dst]); err != nil {
		return f, fmt.Errorf("port: %w", err)
	}
	return f, nil
}

// family is the value of the parameter of that name.
func (p *params) family() string {
	if p.v6 {
		return "6"
	}
	return ""
}

// query returns the parameters as text for an address, with some of them replaced. Empty values are left out.
func (p *params) query(replace ...string) string {
	v := url.Values{}
	set := func(name, value string) {
		v.Del(name)
		if value != "" && !(value == "1" && slices.Contains([]string{"row", "column", "part"}, name)) {
			v.Set(name, value)
		}
	}
	set("rows", p.rows)
	set("columns", p.columns)
	set("find", p.find)
	set("namespace", p.namespace)
	set("row", strconv.Itoa(p.row))
	set("column", strconv.Itoa(p.column))
	set("part", strconv.Itoa(p.part))
	set("from", p.from)
	set("to", p.to)
	set("port", p.port)
	set("protocol", p.protocol)
	set("family", p.family())
	for i := 0; i+1 < len(replace); i += 2 {
		set(replace[i], replace[i+1])
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// slice is a part of a list.
type slice[T any] struct {
	Items []T
	// Part is the number of this part, of Parts. Total counts the items of all parts.
	Part, Parts, Total int
}

// cut returns a part of a list that has at most size items per part. A part behind the end is the last one.
func cut[T any](all []T, part, size int) slice[T] {
	s := slice[T]{Part: part, Parts: max(1, (len(all)+size-1)/size), Total: len(all)}
	s.Part = min(s.Part, s.Parts)
	first := (s.Part - 1) * size
	s.Items = all[first:min(first+size, len(all))]
	return s
}
