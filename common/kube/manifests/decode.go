// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
)

// header holds the fields of every object.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

func (h header) String() string {
	return objectName(h.Kind, h.Metadata.Namespace, h.Metadata.Name)
}

// group returns the API group, empty for the core group.
func (h header) group() string {
	g, _, found := strings.Cut(h.APIVersion, "/")
	if !found {
		return ""
	}
	return g
}

// take reads one object, or a list of them.
func (l *loader) take(raw []byte) {
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return // an empty document
	}
	var h header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		l.at.Object = ""
		l.reject(misfitRemarks(raw, reflect.TypeFor[header](), err)...)
		return
	}
	l.at.Object = h.String()
	if h.Kind == "" {
		l.at.Object = ""
		l.reject(remark{field: "kind", detail: "missing: every document must be a Kubernetes object with apiVersion and kind"})
		return
	}
	if item, ok := strings.CutSuffix(h.Kind, "List"); ok && l.isList(h, item) {
		l.takeList(h, item, raw)
		return
	}
	if l.objects++; l.objects > l.limits.Objects {
		if l.objects == l.limits.Objects+1 {
			l.reject(remark{detail: fmt.Sprintf("more than %d objects: remove some or raise the limit", l.limits.Objects)})
		}
		return
	}
	k, problem := l.find(h)
	switch {
	case problem != nil:
		l.reject(*problem)
	case k != nil:
		l.read(k, raw)
	default:
		l.ignored[h.APIVersion+" "+h.Kind]++
	}
}

// read converts an object of a kind and keeps it.
func (l *loader) read(k *Kind, raw []byte) {
	d := k.read(k, raw, l.strict)
	l.reject(d.problems...)
	l.warn(d.warnings...)
	if len(d.problems) > 0 {
		return
	}
	l.complete(k, d.meta)
	r := d.convert()
	if !l.accept(r.errs) {
		return
	}
	l.warn(r.warnings...)
	if len(r.errs) > 0 && r.enforced != "" {
		l.warn(remark{detail: "the policy is not valid: " + r.enforced})
	}
	l.found[objectID{k.Name, d.meta.GetNamespace(), d.meta.GetName()}] = found{k, r.value, l.at}
}

// find returns the kind of an object; nil if the object is to be ignored.
func (l *loader) find(h header) (*Kind, *remark) {
	var sibling *Kind // the first custom kind of the object's group
	for i := range l.kinds {
		k := &l.kinds[i]
		switch {
		case k.Name != h.Kind && strings.EqualFold(k.Name, h.Kind) && k.Group == h.group():
			return nil, &remark{field: "kind", detail: quoted(h.Kind) + ": write " + k.Name}
		case k.Name != h.Kind:
		case slices.Contains(k.Versions, h.version()) && k.Group == h.group():
			return k, nil
		case k.Group == h.group() || h.group() == "" || h.group() == "extensions":
			// A removed API, or a typing error. Ignoring the object would leave it unenforced.
			return nil, &remark{field: "apiVersion", detail: quoted(h.APIVersion) + " is not served: use " + k.APIVersion()}
		}
		if sibling == nil && k.custom() && k.Group == h.group() {
			sibling = k
		}
	}
	if sibling != nil {
		return nil, &remark{field: "kind", detail: fmt.Sprintf("%s %s is not known: use %s", quoted(h.APIVersion), quoted(h.Kind), sibling.Name)}
	}
	if strings.HasSuffix(h.Kind, "NetworkPolicy") {
		l.warn(remark{field: "kind", detail: fmt.Sprintf("%s of %s is a policy of another product and is not enforced", h.Kind, bounded(h.APIVersion, maxValue))})
	}
	return nil, nil
}

func (h header) version() string { return h.APIVersion[strings.LastIndexByte(h.APIVersion, '/')+1:] }

// isList distinguishes v1 List, and lists of the kinds that are read, from kinds of other groups whose
// names end in List.
func (l *loader) isList(h header, item string) bool {
	if item == "" {
		return h.APIVersion == "v1" || h.APIVersion == ""
	}
	return slices.ContainsFunc(l.kinds, func(k Kind) bool { return k.Name == item && k.Group == h.group() })
}

func (l *loader) takeList(h header, item string, raw []byte) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &list); err != nil {
		l.reject(remark{field: "items", detail: "must be a list of objects"})
		return
	}
	at := l.at
	for i, raw := range list.Items {
		l.at = at
		if item != "" { // items of a typed list may omit their type
			raw = withType(raw, h.APIVersion, item)
		}
		errs := len(l.errors)
		l.take(raw)
		for e := range l.errors[errs:] {
			if err := &l.errors[errs+e]; err.Object == "" || strings.HasSuffix(err.Object, " ?") {
				err.Field = strings.TrimSuffix(fmt.Sprintf("items[%d].%s", i, err.Field), ".")
			}
		}
	}
	l.at = at
}

// withType adds apiVersion and kind to an object that lacks them.
func withType(raw []byte, apiVersion, kind string) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil || fields["kind"] != nil {
		return raw
	}
	fields["kind"], _ = json.Marshal(kind)
	fields["apiVersion"], _ = json.Marshal(apiVersion)
	out, err := json.Marshal(fields)
	if err != nil {
		return raw
	}
	return out
}
