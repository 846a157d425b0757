// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// The requests to HNS in their JSON form.
type (
	requestsReport struct {
		Node        string          `json:"node"`
		HNS         string          `json:"hns"`
		Unsupported []string        `json:"unsupported"`
		Requests    []requestReport `json:"requests"`
	}
	requestReport struct {
		// Of is the object to modify: the network, or the endpoint of Pod. A request repeats
		// the other policies of an endpoint, because HNS replaces all of them.
		Of      string     `json:"of"`
		Pod     string     `json:"pod,omitempty"`
		Request hnsRequest `json:"request"`
	}
	// hnsRequest uses the member names of HNS.
	hnsRequest struct {
		ResourceType string
		RequestType  hns.RequestType
		Settings     struct{ Policies []hns.Policy }
	}
)

// requestsReports lists the requests to each version of HNS on one node.
type requestsReports []requestsReport

func reportRequests(s *model.Snapshot, n *model.Node, versions []hnsVersion, overlay bool) requestsReports {
	state, unsupported := compileNode(s, n.Name)
	var all requestsReports
	for _, v := range versions {
		options := aclOptions(v)
		options.Node = hostAddresses(n, overlay)
		options.Sets = options.Sets && !overlay // the agent chooses the same
		all = append(all, requestsFor(state, unsupported, options, n.Name, v))
	}
	return all
}

func (r requestsReports) elements() []any {
	all := make([]any, len(r))
	for i := range r {
		all[i] = r[i]
	}
	return all
}

// write implements nodeAnswer; requests are always printed as JSON.
func (r requestsReports) write(out io.Writer, _ bool) error { return cli.EncodeJSON(out, r) }

// hostAddresses are the addresses of the node that reach its pods under any policy: its own,
// and on an l2bridge the address of the host in the pod network.
func hostAddresses(n *model.Node, overlay bool) []netip.Addr {
	addresses := slices.Clone(n.Addresses)
	for _, p := range n.PodCIDRs {
		if !overlay {
			addresses = append(addresses, p.Addr().Next().Next())
		}
	}
	return addresses
}

// requestsFor plans the writes as package windows does, starting from endpoints that deny
// everything.
func requestsFor(state *model.State, unsupported []model.Unsupported, options acl.Options, node string, v hnsVersion) requestsReport {
	lowering := acl.Lower(state, options, platformName(v))
	r := requestsReport{Node: node, HNS: v.String(), Unsupported: []string{}, Requests: []requestReport{}}
	for _, u := range slices.Concat(unsupported, lowering.Unsupported) {
		u.OS, u.Platform = model.Windows, platformName(v)
		r.Unsupported = append(r.Unsupported, u.String())
	}
	from := &acl.Ruleset{Lists: make(map[model.EndpointID][]hns.ACL), Sets: make(map[string][]netip.Addr)}
	for id := range lowering.Lists {
		from.Lists[id] = acl.DenyAll()
	}
	for _, step := range acl.NewPlan(from, &lowering.Ruleset).Steps {
		one := requestReport{Of: "network"}
		one.Request.ResourceType, one.Request.RequestType = "Policy", hns.Update
		switch step.Action {
		case acl.WriteList:
			one.Of, one.Pod = "endpoint", state.Policy.Endpoints[step.Endpoint].Pod.String()
			for _, a := range step.List {
				one.Request.Settings.Policies = append(one.Request.Settings.Policies, a.Policy())
			}
		default: // no set exists yet, so that sets are only created
			if step.Make {
				one.Request.RequestType = hns.Add
			}
			one.Request.Settings.Policies = []hns.Policy{acl.EncodeSet(step.Set, step.Members).Policy()}
		}
		r.Requests = append(r.Requests, one)
	}
	return r
}

// The content of a Linux node's maps in its JSON form.
type (
	mapsReport struct {
		Node        string     `json:"node"`
		Unsupported []string   `json:"unsupported"`
		Entries     []mapEntry `json:"entries"`
	}
	mapEntry struct {
		Map   string `json:"map"`
		Key   string `json:"key"`
		Value string `json:"value"`
	}
)

// mapCapacity is large: this command does not check whether the entries fit into the maps of
// a node.
var mapCapacity = policymap.Capacity{Slots: 1 << 20, Peers4: 1 << 24, Peers6: 1 << 24, Prefixes4: 1 << 20, Prefixes6: 1 << 20,
	Verdicts: 1 << 26, Rows: 1 << 20, Tables: 1 << 16}

func reportMaps(s *model.Snapshot, n *model.Node) (*mapsReport, error) {
	state, unsupported := compileNode(s, n.Name)
	r := &mapsReport{Node: n.Name, Unsupported: []string{}}
	for _, u := range unsupported {
		u.OS = model.Linux
		r.Unsupported = append(r.Unsupported, u.String())
	}
	if err := r.fill(state); err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return r, nil
}

func (r *mapsReport) elements() []any { return []any{r} }

func (r *mapsReport) write(out io.Writer, _ bool) error {
	fmt.Fprintf(out, "node %s: %d map entries\n", r.Node, len(r.Entries))
	for _, u := range r.Unsupported {
		fmt.Fprintf(out, "not exact: %s\n", u)
	}
	for _, m := range r.Entries {
		if _, err := fmt.Fprintf(out, "%-10s %-36s -> %s\n", m.Map, m.Key, m.Value); err != nil {
			return err
		}
	}
	return nil
}

// fill makes the writes of a node whose maps are empty, and lists the entries.
func (r *mapsReport) fill(state *model.State) error {
	layout := policymap.NewLayout(mapCapacity)
	pods := make(map[uint32]string)
	for _, id := range slices.Sorted(maps.Keys(state.Policy.Endpoints)) {
		w, err := layout.AddSlot(id)
		if err != nil {
			return err
		}
		pods[w.Index] = state.Policy.Endpoints[id].Pod.String()
	}
	for _, step := range dataplane.Plan(layout.State(), state) {
		if _, err := layout.Advance(step, time.Time{}); err != nil {
			return err
		}
	}
	add := func(name, key, format string, args ...any) {
		r.Entries = append(r.Entries, mapEntry{name, key, fmt.Sprintf(format, args...)})
	}
	// The agent numbers tables and classes in the maps by the free numbers. Here they have
	// the numbers of the compiled tables, so that both outputs can be compared.
	var report nodeReport
	peers, ports := report.addPeers(state), report.addPorts(state)
	ids, _ := tablesOf(state)
	tables := make(map[uint32]int)
	for number, id := range layout.Tables {
		tables[number] = slices.Index(ids, id)
	}
	for _, n := range slices.Sorted(maps.Keys(layout.Slots)) {
		add("slots", fmt.Sprintf("%d (%s)", n, pods[n]), "table %d", tables[layout.Slots[n].Table])
	}
	for _, a := range slices.SortedFunc(maps.Keys(layout.Peers), netip.Addr.Compare) {
		add("peers"+family(a), a.String(), "class %d", slices.Index(peers, model.PeerClass(layout.Peers[a])))
	}
	for _, p := range slices.SortedFunc(maps.Keys(layout.Prefixes), model.ComparePrefixes) {
		add("prefixes"+family(p.Addr()), p.String(), "class %d", slices.Index(peers, model.PeerClass(layout.Prefixes[p])))
	}
	for _, p := range state.Policy.Ports {
		add("ports", reach.PortsText([]reach.PortSet{{Protocol: p.Protocol.String(), First: p.First, Last: p.Last}}), "class %d", slices.Index(ports, p.Class))
	}
	r.addTables(layout.Entries, tables, peers, ports)
	return nil
}

func (r *mapsReport) addTables(e *policymap.Entries, tables map[uint32]int, peers []model.PeerClass, ports []model.PortClass) {
	order := slices.SortedFunc(maps.Keys(e.Tables), func(a, b uint32) int { return cmp.Compare(tables[a], tables[b]) })
	for _, n := range order {
		r.Entries = append(r.Entries, mapEntry{"tables", fmt.Sprint(tables[n]),
			fmt.Sprintf("%s, else ingress %s, egress %s", e.Tables[n], model.Verdict(n>>model.Ingress&1), model.Verdict(n>>model.Egress&1))})
	}
	rows := map[uint32]string{policymap.RowDeny: "deny all", policymap.RowAllow: "allow all"}
	for n, row := range e.Rows {
		var classes []int
		for i, c := range ports {
			if row.Allow[c/64]>>(c%64)&1 == 1 {
				classes = append(classes, i)
			}
		}
		rows[n] = "allow port classes " + numbers(classes)
	}
	for _, n := range order {
		for i, c := range peers {
			for _, d := range model.Directions {
				if row, ok := e.Verdicts[n][policymap.PeerKey(c, d)]; ok {
					r.Entries = append(r.Entries, mapEntry{"verdicts", fmt.Sprintf("table %d class %d %s", tables[n], i, d), "row: " + rows[row.Row]})
				}
			}
		}
	}
}

func family(a netip.Addr) string {
	if a.Is6() {
		return "6"
	}
	return "4"
}
