// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// A compiled node in its JSON form. Tables and classes are numbered in the order in which
// they are printed, which depends only on the objects.
type (
	nodeReport struct {
		Node        string        `json:"node"`
		OS          model.OS      `json:"os"`
		Peers       []peersReport `json:"peer_classes"`
		Ports       []portsReport `json:"port_classes"`
		Tables      []tableReport `json:"tables"`
		Unsupported []string      `json:"unsupported"`
	}
	peersReport struct {
		Class     int      `json:"class"`
		Kind      string   `json:"kind"`
		Terms     []string `json:"terms"`
		PortNames []string `json:"port_names"`
		Addresses []string `json:"addresses"`
		Prefixes  []string `json:"prefixes"`
	}
	portsReport struct {
		Class int             `json:"class"`
		Ports []reach.PortSet `json:"ports"`
	}
	tableReport struct {
		Table   int         `json:"table"`
		Pods    []string    `json:"pods"`
		Ingress []rowReport `json:"ingress"`
		Egress  []rowReport `json:"egress"`
	}
	// rowReport is the decision for some classes of peers.
	rowReport struct {
		Peers []int        `json:"peer_classes"`
		Cells []cellReport `json:"cells"`
	}
	// cellReport is a decision for some classes of ports.
	cellReport struct {
		Ports   []int  `json:"port_classes"`
		Verdict string `json:"verdict"`
		Cause   string `json:"cause"`
	}
)

func reportNode(s *model.Snapshot, n *model.Node) *nodeReport {
	state, unsupported := compileNode(s, n.Name)
	r := &nodeReport{Node: n.Name, OS: n.OS, Unsupported: []string{}}
	for _, u := range unsupported {
		u.OS = n.OS
		r.Unsupported = append(r.Unsupported, u.String())
	}
	render := &reporter{peers: r.addPeers(state), ports: r.addPorts(state), rows: make(map[*model.Row]renderedRow), causes: make(map[*model.Cause]string)}
	ids, members := tablesOf(state)
	r.Tables = []tableReport{}
	for i, id := range ids {
		t := state.Policy.Tables[id]
		r.Tables = append(r.Tables, tableReport{Table: i, Pods: members[id],
			Ingress: render.side(&t.Sides[model.Ingress]), Egress: render.side(&t.Sides[model.Egress])})
	}
	return r
}

// tablesOf returns the tables in the order of the first of their pods, and the pods of each.
func tablesOf(state *model.State) ([]model.TableID, map[model.TableID][]string) {
	members := make(map[model.TableID][]string)
	for _, e := range state.Policy.Endpoints {
		members[e.Table] = append(members[e.Table], e.Pod.String())
	}
	var ids []model.TableID
	for id := range members {
		slices.Sort(members[id])
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b model.TableID) int { return cmp.Compare(members[a][0], members[b][0]) })
	return ids, members
}

// addPeers lists the classes of addresses that have members. The order of its result is the
// order of the report.
func (r *nodeReport) addPeers(s *model.State) []model.PeerClass {
	addresses := make(map[model.PeerClass][]netip.Addr)
	for a, c := range s.Policy.Addresses.All() {
		addresses[c] = append(addresses[c], a)
	}
	prefixes := make(map[model.PeerClass][]string)
	for _, p := range s.Policy.Prefixes {
		prefixes[p.Class] = append(prefixes[p.Class], p.Prefix.String())
	}
	infos := slices.Clone(s.Policy.PeerClasses)
	slices.SortFunc(infos, func(a, b model.PeerClassInfo) int {
		return cmp.Or(compareBool(b.Class == model.World, a.Class == model.World), cmp.Compare(a.Kind, b.Kind),
			slices.Compare(a.Terms, b.Terms), slices.Compare(a.Names, b.Names))
	})
	r.Peers = []peersReport{}
	var order []model.PeerClass
	for _, info := range infos {
		slices.SortFunc(addresses[info.Class], netip.Addr.Compare)
		p := peersReport{Class: len(order), Kind: info.Kind.String(), Terms: append([]string{}, info.Terms...),
			PortNames: append([]string{}, info.Names...), Addresses: []string{}, Prefixes: append([]string{}, prefixes[info.Class]...)}
		for _, a := range addresses[info.Class] {
			p.Addresses = append(p.Addresses, a.String())
		}
		if info.Class == model.World {
			p.Kind = "everything else"
		}
		r.Peers = append(r.Peers, p)
		order = append(order, info.Class)
	}
	return order
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// addPorts lists the classes of ports. The order of its result is the order of the report.
func (r *nodeReport) addPorts(s *model.State) []model.PortClass {
	r.Ports = []portsReport{{Class: 0, Ports: []reach.PortSet{}}}
	order := []model.PortClass{model.OtherPorts}
	for _, p := range s.Policy.Ports {
		i := slices.Index(order, p.Class)
		if i < 0 {
			i = len(order)
			order = append(order, p.Class)
			r.Ports = append(r.Ports, portsReport{Class: i})
		}
		r.Ports[i].Ports = append(r.Ports[i].Ports, reach.PortSet{Protocol: p.Protocol.String(), First: p.First, Last: p.Last})
	}
	return order
}

// reporter renders the rows of a node. It renders each row and each cause of a decision
// once, because they occur in many places.
type reporter struct {
	peers  []model.PeerClass
	ports  []model.PortClass
	rows   map[*model.Row]renderedRow
	causes map[*model.Cause]string
}

// renderedRow is the cells of a row, and a text that only equal cells share.
type renderedRow struct {
	cells []cellReport
	key   string
}

// side joins the classes of peers that have the same decisions.
func (r *reporter) side(s *model.Side) []rowReport {
	found := make(map[string]int)
	list := []rowReport{}
	for i, c := range r.peers {
		row := r.row(s.Row(c))
		n, ok := found[row.key]
		if !ok {
			n = len(list)
			found[row.key] = n
			list = append(list, rowReport{Cells: row.cells})
		}
		list[n].Peers = append(list[n].Peers, i)
	}
	return list
}

// row joins the classes of ports that have the same decision.
func (r *reporter) row(row *model.Row) renderedRow {
	if known, ok := r.rows[row]; ok {
		return known
	}
	var cells []cellReport
	for i, c := range r.ports {
		d := row.Cell(c)
		verdict, cause := d.Verdict.String(), r.cause(d.Cause)
		n := slices.IndexFunc(cells, func(r cellReport) bool { return r.Verdict == verdict && r.Cause == cause })
		if n < 0 {
			n = len(cells)
			cells = append(cells, cellReport{Verdict: verdict, Cause: cause})
		}
		cells[n].Ports = append(cells[n].Ports, i)
	}
	rendered := renderedRow{cells, fmt.Sprint(cells)}
	r.rows[row] = rendered
	return rendered
}

func (r *reporter) cause(c *model.Cause) string {
	if c == nil {
		return "nothing is allowed"
	}
	text, ok := r.causes[c]
	if !ok {
		text = c.String()
		r.causes[c] = text
	}
	return text
}

func (r *nodeReport) elements() []any { return []any{r} }

func (r *nodeReport) write(out io.Writer, first bool) error {
	var b strings.Builder
	if !first {
		b.WriteByte('\n')
	}
	pods := 0
	for _, t := range r.Tables {
		pods += len(t.Pods)
	}
	fmt.Fprintf(&b, "node %s (%s): %d pods, %d tables, %d peer classes, %d port classes\n", r.Node, cli.OrNone(string(r.OS)), pods,
		len(r.Tables), len(r.Peers), len(r.Ports))
	for _, u := range r.Unsupported {
		fmt.Fprintf(&b, "not exact: %s\n", u)
	}
	b.WriteString("\nports\n  0  other protocols, and ports that no rule names\n")
	for _, p := range r.Ports[1:] {
		fmt.Fprintf(&b, "  %d  %s\n", p.Class, reach.PortsText(p.Ports))
	}
	b.WriteString("\npeers\n")
	for _, p := range r.Peers {
		p.write(&b)
	}
	for _, t := range r.Tables {
		fmt.Fprintf(&b, "\ntable %d: %s\n", t.Table, cli.Shorten(t.Pods, 10))
		r.writeSide(&b, "ingress from", t.Ingress)
		r.writeSide(&b, "egress to", t.Egress)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func (p *peersReport) write(b *strings.Builder) {
	fmt.Fprintf(b, "  %d  %s: %s\n", p.Class, p.Kind, cli.OrNone(cli.Shorten(slices.Concat(p.Addresses, p.Prefixes), 5)))
	for _, t := range p.Terms {
		fmt.Fprintf(b, "       matches %s\n", t)
	}
	for _, n := range p.PortNames {
		fmt.Fprintf(b, "       port %s\n", n)
	}
}

func (r *nodeReport) writeSide(b *strings.Builder, head string, rows []rowReport) {
	for _, row := range rows {
		fmt.Fprintf(b, "  %s peers %s\n", head, numbers(row.Peers))
		for _, c := range row.Cells {
			ports := "all ports"
			if len(row.Cells) > 1 {
				ports = "ports " + numbers(c.Ports)
			}
			fmt.Fprintf(b, "    %s %s: %s\n", c.Verdict, ports, c.Cause)
		}
	}
}

// numbers formats ascending numbers with ranges: "0-3 7".
func numbers(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[j]))
		} else {
			parts = append(parts, fmt.Sprint(list[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, " ")
}
