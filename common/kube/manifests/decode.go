// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	kjson "sigs.k8s.io/json"

	"github.com/isthmus-net/isthmus/common/kube/convert"
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
	return convert.ObjectName(h.Kind, h.Metadata.Namespace, h.Metadata.Name)
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
		l.reject(convert.MisfitRemarks(raw, reflect.TypeFor[header](), err)...)
		return
	}
	l.at.Object = h.String()
	if h.Kind == "" {
		l.at.Object = ""
		if isToolFile(l.at.File) {
			return
		}
		l.reject(convert.Remark{Field: "kind", Detail: "missing: every document must be a Kubernetes object with apiVersion and kind"})
		return
	}
	if item, ok := strings.CutSuffix(h.Kind, "List"); ok && l.isList(h, item) {
		l.takeList(h, item, raw)
		return
	}
	if l.objects++; l.objects > l.limits.Objects {
		if l.objects == l.limits.Objects+1 {
			l.reject(convert.Remark{Detail: fmt.Sprintf("more than %d objects: remove some or raise the limit", l.limits.Objects)})
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

// isToolFile reports whether a file by its name belongs to kustomize or Helm. Its documents need no kind, so one
// without a kind is not a Kubernetes object.
func isToolFile(name string) bool {
	base := filepath.Base(filepath.FromSlash(name))
	return slices.Contains([]string{"kustomization.yaml", "kustomization.yml", "Chart.yaml", "values.yaml"}, base)
}

// read converts an object of a kind and keeps it.
func (l *loader) read(k *convert.Kind, raw []byte) {
	d := k.Read(k, raw, l.strict)
	l.reject(d.Problems...)
	l.warn(d.Warnings...)
	if len(d.Problems) > 0 {
		return
	}
	l.complete(k, d.Meta)
	r := d.Convert()
	if !l.accept(r.Errs) {
		return
	}
	l.warn(r.Warnings...)
	if len(r.Errs) > 0 && r.Enforced != "" {
		l.warn(convert.Remark{Detail: "the policy is not valid: " + r.Enforced})
	}
	l.found[objectID{k.Name, d.Meta.GetNamespace(), d.Meta.GetName()}] = found{k, r.Value, l.at}
}

// find returns the kind of an object; nil if the object is to be ignored.
func (l *loader) find(h header) (*convert.Kind, *convert.Remark) {
	var siblings []string // the kinds of the object's group, if it has policies or is custom
	for i := range l.kinds {
		k := &l.kinds[i]
		switch {
		case k.Name != h.Kind && strings.EqualFold(k.Name, h.Kind) && k.Group == h.group():
			return nil, &convert.Remark{Field: "kind", Detail: convert.Quoted(h.Kind) + ": write " + k.Name}
		case k.Name != h.Kind:
		case slices.Contains(k.Versions, h.version()) && k.Group == h.group():
			return k, nil
		case k.Group == h.group() || h.group() == "" || h.group() == "extensions":
			// A removed API, or a typing error. Ignoring the object would leave it unenforced.
			return nil, &convert.Remark{Field: "apiVersion", Detail: convert.Quoted(h.APIVersion) + " is not served: use " + k.APIVersion()}
		}
		if (k.Policy || k.Custom()) && k.Group == h.group() {
			siblings = append(siblings, k.Name)
		}
	}
	if len(siblings) > 0 && !h.besidePolicies() {
		return nil, &convert.Remark{Field: "kind", Detail: fmt.Sprintf("%s %s is not known: use %s", convert.Quoted(h.APIVersion),
			convert.Quoted(h.Kind), strings.Join(siblings, " or "))}
	}
	if strings.HasSuffix(h.Kind, "NetworkPolicy") {
		l.warn(convert.Remark{Field: "kind", Detail: fmt.Sprintf("%s of %s is a policy of another product and is not enforced", h.Kind,
			convert.Bounded(h.APIVersion, convert.MaxValue))})
	}
	return nil, nil
}

// besidePolicies reports whether the kind is one of Kubernetes that shares its group with policies, and is ignored.
func (h header) besidePolicies() bool {
	kind := strings.TrimSuffix(h.Kind, "List")
	return h.group() == networkingv1.GroupName && slices.Contains([]string{"Ingress", "IngressClass", "IPAddress"}, kind)
}

func (h header) version() string { return h.APIVersion[strings.LastIndexByte(h.APIVersion, '/')+1:] }

// isList distinguishes v1 List, and lists of the kinds that are read, from kinds of other groups whose
// names end in List.
func (l *loader) isList(h header, item string) bool {
	if item == "" {
		return h.APIVersion == "v1" || h.APIVersion == ""
	}
	return slices.ContainsFunc(l.kinds, func(k convert.Kind) bool { return k.Name == item && k.Group == h.group() })
}

func (l *loader) takeList(h header, item string, raw []byte) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &list); err != nil {
		l.reject(convert.Remark{Field: "items", Detail: "must be a list of objects"})
		return
	}
	at, lines := l.at, l.doc.itemLines(len(list.Items))
	l.doc = document{} // it does not have the items of lists in this one
	for i, raw := range list.Items {
		l.at = at
		if lines != nil {
			l.at.Line = lines[i]
		}
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
