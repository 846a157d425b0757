// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// diffDeny reports that deny lists deny other sources.
type diffDeny struct {
	// Lists are the deny lists that differ, each with what happened to it.
	Lists []diffEdit `json:"lists"`
	// Opens is set if these sources were denied and are not any more.
	Opens bool `json:"opens"`
	// Ranges are the sources.
	Ranges []rangeReport `json:"from_ranges"`
}

// addDenyLists adds the sources that deny lists deny in one version only.
func (r *diffReport) addDenyLists(v *versions, was, is *model.Snapshot, onlyOpened bool) {
	r.DenyLists = []diffDeny{}
	before, after := compile.DenySet(was), compile.DenySet(is)
	lists := editedLists(v, was, is)
	if opened := deniedWithout(before, after); len(opened) > 0 {
		r.DenyLists = append(r.DenyLists, diffDeny{lists, true, opened})
	}
	closed := deniedWithout(after, before)
	switch {
	case len(closed) == 0:
	case onlyOpened:
		r.Unlisted++
	default:
		r.DenyLists = append(r.DenyLists, diffDeny{lists, false, closed})
	}
}

// deniedWithout returns the sources that the first set denies, and not the second. Either may be nil.
func deniedWithout(set, other *model.DenySet) (all []rangeReport) {
	if set == nil {
		return nil
	}
	if other == nil {
		other = &model.DenySet{}
	}
	for _, p := range set.Prefixes {
		if covering, ok := other.Covering(p.Addr()); ok && covering.Bits() <= p.Bits() {
			continue // of these only addresses that are exempt in one set differ
		}
		one := rangeReport{CIDR: p.String(), Except: []string{}}
		at, _ := slices.BinarySearchFunc(other.Prefixes, p.Addr(), func(o netip.Prefix, a netip.Addr) int { return o.Addr().Compare(a) })
		for ; at < len(other.Prefixes) && p.Contains(other.Prefixes[at].Addr()); at++ { // they are sorted
			one.Except = append(one.Except, other.Prefixes[at].String())
		}
		for _, a := range set.Exempt {
			if _, ok := other.Covering(a); p.Contains(a) && !ok {
				one.Except = append(one.Except, netip.PrefixFrom(a, a.BitLen()).String())
			}
		}
		all = append(all, one)
	}
	for _, a := range other.Exempt {
		if set.Denies(a) && !slices.ContainsFunc(all, func(r rangeReport) bool { return netip.MustParsePrefix(r.CIDR).Contains(a) }) {
			all = append(all, rangeReport{CIDR: netip.PrefixFrom(a, a.BitLen()).String(), Except: []string{}})
		}
	}
	return all
}

// editedLists returns the deny lists that differ.
func editedLists(v *versions, was, is *model.Snapshot) []diffEdit {
	all := []diffEdit{}
	add := func(l *model.DenyList, edit string, places map[string]model.Place) {
		name := l.Origin().String()
		all = append(all, diffEdit{Policy: name, Edit: edit, Place: places[name].String()})
	}
	for name, l := range was.DenyLists.All() {
		if _, ok := is.DenyLists.Get(name); !ok {
			add(l, "removed", v.was.Places)
		}
	}
	for name, l := range is.DenyLists.All() {
		old, ok := was.DenyLists.Get(name)
		switch {
		case !ok:
			add(l, "added", v.is.Places)
		case !slices.Equal(old.Entries, l.Entries):
			add(l, "changed", v.is.Places)
		}
	}
	slices.SortFunc(all, func(a, b diffEdit) int { return strings.Compare(a.Policy, b.Policy) })
	return all
}

// heading names the deny lists.
func (d diffDeny) heading() string {
	c := diffChange{Responsible: d.Lists, Objects: len(d.Lists) == 0} // without a list, addresses of nodes differ
	return c.heading()
}

// sources names the ranges.
func (d diffDeny) sources() string {
	var all []string
	for _, r := range d.Ranges {
		text := model.EntryText(netip.MustParsePrefix(r.CIDR))
		if len(r.Except) > 0 {
			text += " besides " + cli.Shorten(r.Except, maxExcept)
		}
		all = append(all, text)
	}
	return cli.Shorten(all, maxEnds)
}

// verdicts are the verdict before and after.
func (d diffDeny) verdicts() (was, is string) {
	if d.Opens {
		return "deny", "allow"
	}
	return "allow", "deny"
}

const denyTargets = "every pod, and every Linux node"

func (d diffDeny) write(b *strings.Builder) {
	was, is := d.verdicts()
	fmt.Fprintf(b, "%s:\n  %s -> %s  all  (on uplinks, before policy)\n    from  %s\n    to    %s\n", d.heading(), was, is, d.sources(), denyTargets)
}

func (d diffDeny) writeMarkdown(b *strings.Builder) {
	what := "closes"
	if d.Opens {
		what = "**opens**"
	}
	fmt.Fprintf(b, "\n**%s**\n\n| | ports | from | to | decided at |\n|---|---|---|---|---|\n| %s | all | %s | %s | uplinks, before policy |\n",
		cell(d.heading()), what, cell(d.sources()), denyTargets)
}
