// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Dump returns all attachments and the state in force as sorted text. Numbers of classes and identities of
// tables are replaced by their order of appearance: data paths with equal decisions give equal texts.
func (f *Fake) Dump() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := &dumper{state: f.inForce}
	if d.state == nil {
		d.state = &model.State{}
		d.line("nothing was applied")
	}
	d.number()
	for _, id := range slices.Sorted(maps.Keys(f.attached)) {
		d.endpoint(id, f.attached[id])
	}
	d.classes()
	for i, id := range d.order {
		d.table(i, d.state.Policy.Tables[id])
	}
	for _, r := range d.state.Fabric.Routes {
		d.line("route %s %s via %v: %v", r.Node, r.OS, r.Addresses, r.PodCIDRs)
	}
	return d.text.String()
}

type dumper struct {
	state *model.State
	text  strings.Builder
	// tables, peers and ports are the numbers in the text.
	tables map[model.TableID]int
	order  []model.TableID
	peers  map[model.PeerClass]int
	ports  map[model.PortClass]int
	listed []netip.Addr
}

func (d *dumper) line(format string, args ...any) { fmt.Fprintf(&d.text, format+"\n", args...) }

// number numbers tables by endpoint, peer classes by address and then prefix, port classes by range.
func (d *dumper) number() {
	d.tables, d.peers, d.ports = make(map[model.TableID]int), map[model.PeerClass]int{model.World: 0}, map[model.PortClass]int{model.OtherPorts: 0}
	for _, id := range slices.Sorted(maps.Keys(d.state.Policy.Endpoints)) {
		table := d.state.Policy.Endpoints[id].Table
		if _, ok := d.tables[table]; !ok {
			d.tables[table] = len(d.order)
			d.order = append(d.order, table)
		}
	}
	for a := range d.state.Policy.Addresses.All() {
		d.listed = append(d.listed, a)
	}
	slices.SortFunc(d.listed, netip.Addr.Compare)
	for _, a := range d.listed {
		c, _ := d.state.Policy.Addresses.Get(a)
		appear(d.peers, c)
	}
	for _, p := range d.state.Policy.Prefixes {
		appear(d.peers, p.Class)
	}
	for _, r := range d.state.Policy.Ports {
		appear(d.ports, r.Class)
	}
}

// appear assigns the next number to a class without one.
func appear[C comparable](numbers map[C]int, c C) {
	if _, ok := numbers[c]; !ok {
		numbers[c] = len(numbers)
	}
}

func (d *dumper) endpoint(id model.EndpointID, e *endpoint) {
	table := "default deny"
	if s, ok := d.state.Policy.Endpoints[id]; ok {
		table = fmt.Sprintf("table %d", d.tables[s.Table])
	}
	d.line("endpoint %s pod %s netns %s addresses %v: %s", id, e.spec.Pod, e.spec.NetNS, e.spec.IPs, table)
	if e.spec.Bandwidth != (model.Bandwidth{}) {
		d.line("  limited: %s", e.spec.Bandwidth)
	}
	if !e.spec.DNS.IsZero() {
		d.line("  dns: %s", e.spec.DNS)
	}
	if missing := e.missing(); len(missing) > 0 {
		d.line("  missing %s", strings.Join(missing, ", "))
	}
}

func (d *dumper) classes() {
	for _, a := range d.listed {
		c, _ := d.state.Policy.Addresses.Get(a)
		d.line("address %s: peer class %d", a, d.peers[c])
	}
	for _, p := range d.state.Policy.Prefixes {
		d.line("prefix %s: peer class %d", p.Prefix, d.peers[p.Class])
	}
	for _, r := range d.state.Policy.Ports {
		d.line("ports %s %d-%d: port class %d", r.Protocol, r.First, r.Last, d.ports[r.Class])
	}
}

// table writes the verdicts of every class that has addresses.
func (d *dumper) table(i int, t *model.Table) {
	d.line("table %d", i)
	byNumber := func(a, b model.PeerClass) int { return cmp.Compare(d.peers[a], d.peers[b]) }
	for _, direction := range model.Directions {
		for _, class := range slices.SortedFunc(maps.Keys(d.peers), byNumber) {
			d.line("  %s peer class %d: %s", direction, d.peers[class], d.row(t.Sides[direction].Row(class)))
		}
	}
}

func (d *dumper) row(r *model.Row) string {
	byNumber := func(a, b model.PortClass) int { return cmp.Compare(d.ports[a], d.ports[b]) }
	var words []string
	for _, class := range slices.SortedFunc(maps.Keys(d.ports), byNumber) {
		words = append(words, r.Cell(class).Verdict.String())
	}
	return strings.Join(words, " ")
}
