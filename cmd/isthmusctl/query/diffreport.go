// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/cause"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
)

// The JSON form of the answer.
type (
	diffReport struct {
		Changes []diffChange `json:"changes"`
		// ServiceChanges are Services that lead somewhere else, for clients that reach more or less by that.
		ServiceChanges []diffService `json:"service_changes"`
		// TrafficPolicies are Services whose internalTrafficPolicy differs.
		TrafficPolicies []string `json:"internal_traffic_policies_that_differ"`
		// Enforcement are namespaces whose annotation isthmus.dev/enforcement differs.
		Enforcement []string `json:"enforcement_that_differs"`
		// DenyLists are sources that deny lists deny in one version only.
		DenyLists []diffDeny `json:"deny_list_changes"`
		// OnlyA and OnlyB are the pods that are not compared.
		OnlyA []string `json:"pods_only_in_a"`
		OnlyB []string `json:"pods_only_in_b"`
		// Unpoliced are pods of both versions to which policy applies in one only, each with the reason.
		Unpoliced []string `json:"pods_without_policy"`
		// Leave and Enter are those that move to the host network and away from it. Each counts as one change that opens or
		// closes, if the version in which policies apply to them has any.
		Leave []string `json:"pods_that_leave_policy"`
		Enter []string `json:"pods_that_enter_policy"`
		// Services are those that only one version has.
		Services []string `json:"services_added_or_removed"`
		// Policies are those that only one version has, or that differ.
		Policies []string `json:"policies_that_differ"`
		// OverBlocked lists where a node may deny more than the policies do.
		OverBlocked []string `json:"over_blocked"`
		// Unlisted counts the changes that close flows, if only what opens is listed.
		Unlisted int `json:"closes_not_listed,omitempty"`

		used map[string]bool // policies that are responsible for a change, listed or not
	}
	// diffChange reports that flows from every member of From to every member of To on all of
	// Ports changed, except for those of a pod to itself. From and To name every end. The other
	// members also hold the ends that are not pods.
	diffChange struct {
		From       []string        `json:"from"`
		FromNodes  []nodeEndReport `json:"from_nodes,omitempty"`
		FromRanges []rangeReport   `json:"from_ranges,omitempty"`
		To         []string        `json:"to"`
		ToNodes    []nodeEndReport `json:"to_nodes,omitempty"`
		ToRanges   []rangeReport   `json:"to_ranges,omitempty"`
		// Services lead to members of To on some of Ports, in the second version.
		Services []string        `json:"services,omitempty"`
		Ports    []reach.PortSet `json:"ports"`
		Was      string          `json:"was"`
		Is       string          `json:"is"`
		// By are the sides whose decision changed.
		By []diffSide `json:"by"`
		// Responsible are the policies whose edit causes the change.
		Responsible []diffEdit `json:"responsible"`
		// Objects is set if labels, ports or addresses that differ are responsible too.
		Objects bool `json:"objects_responsible,omitempty"`
		// Unsure is set if there were too many flows to determine the responsible edits.
		Unsure bool `json:"responsible_unsure,omitempty"`

		from, to []string // for the text output
		part     cause.Part
		order    string // heading without places
	}
	diffSide struct {
		Direction string   `json:"direction"`
		OS        model.OS `json:"os"`
	}
	// diffEdit is a policy that was added, removed or changed.
	diffEdit struct {
		Policy string `json:"policy"`
		Edit   string `json:"edit"`
		// Place is the file and line of the policy, if a file has it.
		Place string `json:"place,omitempty"`
	}
)

// compareVersions reports on two versions of a cluster.
func compareVersions(p *reach.Partition, was, is *model.Snapshot, onlyOpened bool) *diffReport {
	r := &diffReport{Changes: []diffChange{}, Policies: []string{}, OnlyA: podNames(p.Only(0)), OnlyB: podNames(p.Only(1)), OverBlocked: crowded(p),
		used: make(map[string]bool)}
	r.Unpoliced = append(unpoliced(p.Only(0), is, "second"), unpoliced(p.Only(1), was, "first")...)
	r.Leave, r.Enter = hosted(p.Only(0), was, is), hosted(p.Only(1), is, was)
	r.Policies = reach.Differing(was.SortedPolicies(), is.SortedPolicies())
	finder := cause.New(p, was, is)
	for _, c := range p.Changes() {
		for _, part := range finder.Split(c) {
			for _, e := range part.Edits {
				r.used[e.Origin().String()] = true
			}
			if onlyOpened && c.Is != model.Allow {
				r.Unlisted++
				continue
			}
			r.Changes = append(r.Changes, changeOf(p, part))
		}
	}
	slices.SortStableFunc(r.Changes, compareChanges)
	return r
}

// unpoliced names the pods of one version that are pods of the other, too, where no policy applies to them.
func unpoliced(only []model.PodID, other *model.Snapshot, in string) []string {
	all := []string{}
	for _, id := range only {
		p, ok := other.Pods.Get(id)
		switch {
		case !ok:
		case p.HostNetwork:
			all = append(all, fmt.Sprintf("%s is on the host network in the %s", id, in))
		case p.Finished:
			all = append(all, fmt.Sprintf("%s has finished in the %s", id, in))
		}
	}
	return all
}

// hosted names the pods that are on the host network in the other version, if their own has policies. There no policy applies to
// them and, as part of their node, they reach all of its pods.
func hosted(only []model.PodID, own, other *model.Snapshot) []string {
	all := []string{}
	if len(own.SortedPolicies()) == 0 {
		return all
	}
	for _, id := range only {
		if p, ok := other.Pods.Get(id); ok && p.HostNetwork && !p.Finished {
			all = append(all, id.String())
		}
	}
	return all
}

func changeOf(p *reach.Partition, part cause.Part) diffChange {
	c := diffChange{Ports: reach.PortSets(p.Cells(), part.Cells), Was: part.Was.String(), Is: part.Is.String(),
		Responsible: []diffEdit{}, Objects: part.Objects, Unsure: part.Unsure, part: part}
	for _, g := range part.From {
		c.From, c.from = append(c.From, endNames(g)...), append(c.from, names(g)...)
		c.FromNodes, c.FromRanges = append(c.FromNodes, reportNodes(g)...), append(c.FromRanges, reportRanges(g)...)
	}
	for _, g := range part.To {
		c.To, c.to = append(c.To, endNames(g)...), append(c.to, names(g)...)
		c.ToNodes, c.ToRanges = append(c.ToNodes, reportNodes(g)...), append(c.ToRanges, reportRanges(g)...)
	}
	for _, list := range [][]string{c.From, c.from, c.To, c.to} {
		slices.Sort(list)
	}
	for _, s := range part.By {
		c.By = append(c.By, diffSide{s.Direction.String(), s.OS})
	}
	for _, e := range part.Edits {
		c.Responsible = append(c.Responsible, diffEdit{Policy: e.Origin().String(), Edit: e.String()})
	}
	c.order = c.heading()
	return c
}

// compareChanges orders by responsible policies. Then come changes among pods, before those of address ranges, and
// what opens before what closes.
func compareChanges(a, b diffChange) int {
	ranges := func(c diffChange) int { return min(1, len(c.FromRanges)+len(c.ToRanges)) }
	return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(ranges(a), ranges(b)), -cmp.Compare(a.Was, b.Was), slices.Compare(a.From, b.From),
		slices.Compare(a.To, b.To), cmp.Compare(fmt.Sprint(a.Ports, a.By), fmt.Sprint(b.Ports, b.By)))
}

// heading names the responsible policies.
func (c diffChange) heading() string {
	var all []string
	for _, e := range c.Responsible {
		text := e.Policy + " " + e.Edit
		if e.Place != "" {
			text += " (" + e.Place + ")"
		}
		all = append(all, text)
	}
	if c.Objects {
		all = append(all, "pods, namespaces or nodes changed")
	}
	joint := ", and "
	if c.Unsure {
		joint = ", or "
	}
	if more := len(all) - maxHeading; more > 0 {
		all = append(all[:maxHeading], fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, joint)
}

// maxHeading is the number of responsible policies that a heading names.
const maxHeading = 5

// locate adds the places of the policies.
func (r *diffReport) locate(v *versions) {
	for i := range r.Changes {
		for j := range r.Changes[i].Responsible {
			e := &r.Changes[i].Responsible[j]
			place, ok := v.is.Places[e.Policy]
			if !ok || e.Edit == "removed" {
				place = v.was.Places[e.Policy]
			}
			e.Place = place.String()
		}
	}
}

func podNames(ids []model.PodID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = id.String()
	}
	return all
}

// backend is an address and port that a Service leads to.
type backend struct {
	address  netip.Addr
	protocol model.Protocol
	port     uint16
}

// addServices names the Services that lead to the destinations of each change.
func (r *diffReport) addServices(p *reach.Partition, v *versions, known *service.Services) {
	if len(v.is.Services) == 0 || len(r.Changes) == 0 {
		return
	}
	leads := make(map[netip.Addr]map[backend][]string)
	for _, s := range v.is.Services {
		for _, port := range s.Ports {
			backends, err := known.Backends(s, port)
			if err != nil {
				continue // a Service without backends leads nowhere
			}
			for _, b := range backends {
				for _, a := range b.Addresses {
					if leads[a] == nil {
						leads[a] = make(map[backend][]string)
					}
					to := backend{a, port.Protocol, b.Port}
					leads[a][to] = append(leads[a][to], fmt.Sprintf("%s/%s %s %d", s.Namespace, s.Name, port.Protocol, port.Port))
				}
			}
		}
	}
	for i := range r.Changes {
		c := &r.Changes[i]
		for _, g := range c.part.To {
			for _, m := range g.Pods {
				for b, names := range leads[m.Addrs[1]] {
					if _, ok := slices.BinarySearch(c.part.Cells, p.Cell(b.protocol, b.port)); ok {
						c.Services = append(c.Services, names...)
					}
				}
			}
		}
		slices.Sort(c.Services)
		c.Services = slices.Compact(c.Services)
	}
}
