// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// notInDigest are the fields that the digest omits, with the reason. TestEditsOfOneField
// shows that a change of them takes effect anyway.
var notInDigest = map[string]string{
	"Subject": "the Compiler selects again for every policy object that is replaced",
}

// TestDigestCoversEveryField changes every field of a policy, found by reflection, and
// expects another digest. A Compiler does not compile a policy again if its digest is equal:
// an edit of a field outside the digest never takes effect. A new field fails here until it
// is handled.
func TestDigestCoversEveryField(t *testing.T) {
	p := richPolicy()
	was := compile.DigestPolicy(p)
	walked := 0
	f := fields{t: t, try: func(path string) {
		walked++
		top, _, _ := strings.Cut(path, ".")
		if _, excluded := notInDigest[top]; (compile.DigestPolicy(p) == was) != excluded {
			t.Errorf("a change of %s changes the digest: %t", path, excluded)
		}
	}}
	f.walk("", reflect.ValueOf(p).Elem())
	if compile.DigestPolicy(p) != was {
		t.Fatal("the walk has left a change behind")
	}
	t.Logf("changes=%d", walked)
}

// TestEditsReachEveryField compares world.Edits with the fields that reflection finds:
// random clusters must edit every field that decides.
func TestEditsReachEveryField(t *testing.T) {
	// Fields that the API makes immutable, and the position of a rule, which follows from
	// its list.
	fixed := []string{"Origin.Kind", "Origin.Namespace", "Origin.Name", "Rules[][].Index"}
	missing := make(map[string]bool)
	f := fields{t: t, try: func(path string) {
		path = index.ReplaceAllString(path, "[]")
		missing[path] = !slices.Contains(fixed, path)
	}}
	f.walk("", reflect.ValueOf(richPolicy()).Elem())
	for seed := range uint64(20) {
		for _, p := range world.Random(seed, world.Shapes[3]).SortedPolicies() {
			for _, e := range world.Edits(p) {
				for _, path := range differences("", reflect.ValueOf(*p), reflect.ValueOf(*e.Policy)) {
					delete(missing, index.ReplaceAllString(path, "[]"))
				}
			}
		}
	}
	for path, is := range missing {
		if is {
			t.Errorf("no edit of test/world changes %s", path)
		}
	}
}

var index = regexp.MustCompile(`\[\d*\]`)

// richPolicy has an element of every kind in both directions.
func richPolicy() *model.Policy {
	selector := func() model.Selector {
		return model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"a", "b"}}, model.Requirement{Key: "env", Operator: model.Exists})
	}
	rules := func() []model.Rule {
		return []model.Rule{
			{Index: 0, Name: "first", Action: model.ActionAccept,
				Peers: []model.Peer{
					{Kind: model.PeerUnknown},
					{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "x", Pods: selector()}},
					{Kind: model.PeerPods, Pods: model.PodSelector{Namespaces: selector(), Pods: selector()}},
					{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix("10.0.0.0/8"),
						Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}}},
					{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/16")}}},
					{Kind: model.PeerNodes, Nodes: selector()},
				},
				Ports: []model.PortMatch{{Protocol: model.TCP, Name: "http"}, {Protocol: model.UDP, First: 53, Last: 60}}},
			{Index: 1, Name: "second", Action: model.ActionDeny, AnyPeer: true, AnyPort: true},
		}
	}
	return &model.Policy{Origin: model.Origin{Kind: "ClusterNetworkPolicy", Namespace: "x", Name: "n", UID: "u"},
		Tier: model.TierAdmin, Priority: 7, Subject: model.PodSelector{Namespaces: selector(), Pods: selector()},
		Isolates: [2]bool{true, false}, Rules: [2][]model.Rule{rules(), rules()}}
}

// meant reports whether a field of a struct counts, given the others: of a Peer only the fields of
// its kind, and so on. Unknown fields count.
func meant(of any, member string) bool {
	switch v := of.(type) {
	case model.Peer:
		of, alternative := map[string]model.PeerKind{"Pods": model.PeerPods, "Block": model.PeerBlock, "Nodes": model.PeerNodes}[member]
		return !alternative || v.Kind == of
	case model.PodSelector:
		return member != "Namespaces" || v.Namespace == ""
	case model.PortMatch:
		return member != "First" && member != "Last" || v.Name == ""
	case model.Requirement:
		return member != "Values" || v.Operator == model.In || v.Operator == model.NotIn
	}
	return true
}

// fields changes every field below a value that counts, one at a time, and restores it.
type fields struct {
	t   *testing.T
	try func(path string)
}

// walk calls try while v, or a part of it, is changed.
func (f fields) walk(path string, v reflect.Value) {
	was := reflect.ValueOf(v.Interface())
	put := func(changed any, path string) {
		v.Set(reflect.ValueOf(changed).Convert(v.Type()))
		f.try(strings.TrimPrefix(path, "."))
		v.Set(was)
	}
	switch value := v.Interface().(type) {
	case netip.Prefix:
		put(netip.PrefixFrom(value.Addr(), (value.Bits()+1)%33), path)
		return
	case model.Selector:
		f.selector(path, value, func(s model.Selector, path string) { put(s, path) })
		return
	case model.Operator:
		put(value^1, path)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		put(!v.Bool(), path)
	case reflect.String:
		put(v.String()+"2", path)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		put(v.Int()+1, path)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		put(v.Uint()+1, path)
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				f.t.Fatalf("%s has the field %s, which this test cannot change: give its type a case", v.Type(), v.Type().Field(i).Name)
			}
			if name := v.Type().Field(i).Name; meant(v.Interface(), name) {
				f.walk(path+"."+name, v.Field(i))
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			f.walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	case reflect.Slice:
		if v.Len() > 0 {
			put(v.Slice(1, v.Len()).Interface(), path+"[]")
		}
		for i := range v.Len() {
			f.walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	default:
		f.t.Fatalf("%s is a %s, which this test cannot change: give it a case", path, v.Type())
	}
}

// selector changes the conditions of a selector, which it recreates each time.
func (f fields) selector(path string, s model.Selector, put func(model.Selector, string)) {
	if names := fieldNames(reflect.TypeFor[model.Selector]()); !slices.Equal(names, []string{"requirements", "text"}) {
		f.t.Fatalf("a Selector has the fields %v: this test must change the new one", names)
	}
	list := cloneRequirements(s.Requirements())
	inner := fields{t: f.t, try: func(path string) { put(model.MakeSelector(cloneRequirements(list)...), path) }}
	inner.walk(path, reflect.ValueOf(&list).Elem())
}

func cloneRequirements(rs []model.Requirement) []model.Requirement {
	c := slices.Clone(rs)
	for i := range c {
		c[i].Values = slices.Clone(c[i].Values)
	}
	return c
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		names = append(names, t.Field(i).Name)
	}
	return names
}

// differences lists the paths, in the notation of fields, at which two values differ.
func differences(path string, a, b reflect.Value) []string {
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return nil
	}
	if s, ok := a.Interface().(model.Selector); ok {
		return differences(path, reflect.ValueOf(s.Requirements()), reflect.ValueOf(b.Interface().(model.Selector).Requirements()))
	}
	var all []string
	switch kind := a.Kind(); {
	case kind == reflect.Struct && a.Type() != reflect.TypeFor[netip.Prefix]():
		for i := range a.NumField() {
			all = append(all, differences(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))...)
		}
		return all
	case kind == reflect.Array:
		for i := range a.Len() {
			all = append(all, differences(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))...)
		}
		return all
	case kind == reflect.Slice && a.Len() != b.Len():
		return []string{strings.TrimPrefix(path+"[]", ".")}
	case kind == reflect.Slice:
		for i := range a.Len() {
			all = append(all, differences(path+"[]", a.Index(i), b.Index(i))...)
		}
		return all
	}
	return []string{strings.TrimPrefix(path, ".")}
}
