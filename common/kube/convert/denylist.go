// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

func denyListKind() Kind {
	return Kind{Name: model.KindDenyList, Group: "isthmus.dev", Versions: []string{"v1alpha1"}, Resource: "denylists", Reported: true,
		Read: reads(func(o *denyList, s Strictness) Result {
			l, notes, errs := convertDenyList(o, s)
			return Result{Value: l, Warnings: notes, Errs: errs}
		}),
		Put:    func(o *model.Objects, v any) { o.DenyLists = append(o.DenyLists, v.(*model.DenyList)) },
		Record: recordDenyList,
		store: mapStore[string, model.DenyList]{byName, all[string],
			func(s *model.Snapshot) *immutable.Map[string, *model.DenyList] { return &s.DenyLists }}}
}

// denyList is isthmus.dev/v1alpha1 DenyList, a cluster-scoped kind; its
// definition is deploy/crds/denylists.yaml.
type denyList struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              denyListSpec `json:"spec"`
}

type denyListSpec struct {
	// Entries are addresses, or prefixes as ADDRESS/BITS.
	Entries []string `json:"entries"`
}

// linkLocal6 is the range of neighbour discovery, without which IPv6 does not work.
var linkLocal6 = netip.MustParsePrefix("fe80::/10")

// convertDenyList keeps the valid entries: an invalid entry must not disable the others. The remarks name
// the ignored entries.
func convertDenyList(o *denyList, s Strictness) (*model.DenyList, []Remark, field.ErrorList) {
	l := &model.DenyList{Name: o.Name, UID: string(o.UID), Entries: make([]netip.Prefix, 0, len(o.Spec.Entries))}
	var notes []Remark
	path := field.NewPath("spec", "entries")
	for i, text := range o.Spec.Entries {
		p, problem := denyEntry(text)
		if problem != "" && len(notes) < MaxRemarks {
			notes = append(notes, Remark{path.Index(i).String(), Quoted(text) + ": " + problem})
		}
		if p.IsValid() {
			l.Entries = append(l.Entries, p)
		}
	}
	slices.SortFunc(l.Entries, model.ComparePrefixes)
	l.Entries = slices.Compact(l.Entries)
	return l, notes, validateCustomMeta(&o.ObjectMeta, s)
}

// denyEntry parses one entry. It returns an invalid prefix for an ignored entry. A problem may also be a
// remark on an entry that is used.
func denyEntry(text string) (p netip.Prefix, problem string) {
	const left = "; the entry is ignored, the others are enforced"
	if a, err := netip.ParseAddr(text); err == nil {
		if a.Zone() != "" || a.Is4In6() {
			return p, "write the address without a zone, and IPv4 as such" + left
		}
		p = netip.PrefixFrom(a, a.BitLen())
	} else if p, err = netip.ParsePrefix(text); err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, "write an address, or ADDRESS/BITS" + left
	}
	masked := p.Masked()
	switch {
	case p.Bits() == 0:
		return netip.Prefix{}, "would cut every node off: list what should be denied" + left
	case masked.Overlaps(linkLocal6):
		return netip.Prefix{}, "contains link-local addresses, without which IPv6 does not work: list the ranges around " + linkLocal6.String() + left
	case masked != p:
		return masked, fmt.Sprintf("is enforced as %s: write it that way", masked)
	}
	return p, ""
}

func recordDenyList(o runtime.Object) *Record {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	var typed denyList
	raw, err := json.Marshal(u.Object)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &typed)
	}
	if err != nil {
		typed = denyList{ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), UID: u.GetUID()}}
		entries, _, _ := unstructured.NestedSlice(u.Object, "spec", "entries")
		for _, e := range entries {
			if text, ok := e.(string); ok {
				typed.Spec.Entries = append(typed.Spec.Entries, text)
			}
		}
		list, _, _ := convertDenyList(&typed, Stored)
		r := recordOf(u, list, nil)
		r.Status = statusOf(u)
		r.Bad, r.enforced = true, fmt.Sprintf("%d of its entries are valid and enforced", len(list.Entries))
		for _, e := range MisfitRemarks(raw, reflect.TypeFor[denyList](), err) {
			r.Notes = append(r.Notes, e.String())
		}
		return r
	}
	list, notes, errs := convertDenyList(&typed, Stored)
	r := recordOf(u, list, errs)
	r.Status = statusOf(u)
	for _, n := range notes {
		r.Notes = append(r.Notes, n.String())
	}
	return r
}
