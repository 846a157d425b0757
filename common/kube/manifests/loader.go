// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/model"
)

// Parse parses the text of one file of manifests. Errors use the name; a name that ends in .json means
// JSON. The returned objects are those without errors.
func Parse(name string, data []byte, limits Limits) (model.Objects, []Warning, []DocumentError) {
	return Reading{Limits: limits}.Parse(name, data)
}

// objectID identifies an object. Pods of two kinds of workloads may have one name, the workloads do not.
type objectID struct{ kind, namespace, name string }

// found is a converted object and its place.
type found struct {
	kind  *convert.Kind
	value any
	at    DocumentError
}

// loader collects the objects of several files. If two objects have one name the later one counts.
type loader struct {
	limits   Limits
	strict   convert.Strictness
	kinds    []convert.Kind
	at       DocumentError // the position of reading
	doc      document      // the text there, of a file that is read as a whole
	warnings []Warning
	errors   []DocumentError
	objects  int
	// ignored counts objects of other kinds.
	ignored map[string]int
	// places maps a name to the place of its last object.
	places map[string]DocumentError

	found map[objectID]found
	// generated counts the objects of a kind, namespace and generateName.
	generated map[string]int
}

func newLoader(r Reading) *loader {
	return &loader{
		limits:    r.Limits,
		strict:    r.strictness(),
		kinds:     convert.Kinds(),
		ignored:   make(map[string]int),
		places:    make(map[string]DocumentError),
		found:     make(map[objectID]found),
		generated: make(map[string]int),
	}
}

// file reads all documents of one file.
func (l *loader) file(name string, data []byte) {
	var docs []document
	isJSON := strings.HasSuffix(name, ".json")
	if isJSON {
		var err error
		if docs, err = splitJSON(data); err != nil {
			l.at = DocumentError{File: name, Document: len(docs) + 1}
			l.reject(convert.Remark{Detail: err.Error()})
		}
	} else {
		docs = splitYAML(data)
	}
	for _, d := range docs {
		l.at = DocumentError{File: name, Document: d.number, Line: d.line}
		raw, err := d.text, error(nil)
		if isJSON {
			err = checkDepth(raw, l.limits.Depth)
		} else {
			raw, err = d.toJSON(l.limits)
		}
		if err != nil {
			l.reject(convert.Remark{Detail: err.Error()})
			continue
		}
		l.doc = d
		l.take(raw)
		l.doc = document{}
	}
}

func (l *loader) reject(problems ...convert.Remark) {
	for _, p := range problems {
		if len(l.errors) == convert.MaxRemarks {
			p = convert.Remark{Detail: "more errors were found: fix the first ones and try again"}
		}
		if e, ok := l.place(p, len(l.errors)); ok {
			l.errors = append(l.errors, e)
		}
	}
}

func (l *loader) warn(notes ...convert.Remark) {
	for _, n := range notes {
		if len(l.warnings) == convert.MaxRemarks {
			n = convert.Remark{Detail: "there are more warnings"}
		}
		if w, ok := l.place(n, len(l.warnings)); ok {
			l.warnings = append(l.warnings, Warning(w))
		}
	}
}

// place returns the position of a remark; it reports false if there are too many.
func (l *loader) place(r convert.Remark, have int) (DocumentError, bool) {
	e := l.at
	e.Field, e.Detail = convert.Bounded(r.Field, 2*convert.MaxValue), convert.Bounded(r.Detail, 5*convert.MaxValue)
	return e, have <= convert.MaxRemarks
}

// accept reports errors, and whether the object is used. An object with errors is not, unless it is stored
// and has a name. It warns about an earlier object of that name.
func (l *loader) accept(errs field.ErrorList) bool {
	switch nameless := strings.HasSuffix(l.at.Object, convert.NoName); {
	case nameless && len(errs) == 0:
		l.reject(convert.Remark{Field: "metadata.name", Detail: "missing: name the object"})
		return false
	case len(errs) > 0 && (l.strict == convert.Written || nameless):
		l.reject(convert.Remarks(errs)...)
		return false
	}
	l.warn(convert.Remarks(errs)...)
	if was, ok := l.places[l.at.Object]; ok {
		l.warn(convert.Remark{Field: "metadata.name", Detail: fmt.Sprintf("also in %s, document %d: the last one counts", was.File, was.Document)})
	}
	l.places[l.at.Object] = l.at
	return true
}

// complete sets the namespace as kubectl does, and a name that the API server would generate.
func (l *loader) complete(k *convert.Kind, m metav1.Object) {
	switch {
	case !k.Namespaced:
		m.SetNamespace("")
	case m.GetNamespace() == "":
		m.SetNamespace(metav1.NamespaceDefault)
	}
	l.generateName(m, k.Name)
	l.at.Object = convert.ObjectName(k.Name, m.GetNamespace(), m.GetName())
}

// maxGenerated is how many bytes of generateName the API server keeps.
const maxGenerated = 58

// generateName names an object that leaves the end of its name to the API server, which appends five
// characters. Here they are digits, by the order of the documents, so that names are stable from one
// reading to the next.
func (l *loader) generateName(m metav1.Object, kind string) {
	prefix := m.GetGenerateName()
	if m.GetName() != "" || prefix == "" {
		return
	}
	key := kind + " " + m.GetNamespace() + "/" + prefix
	l.generated[key]++
	m.SetName(fmt.Sprintf("%s%05d", prefix[:min(len(prefix), maxGenerated)], l.generated[key]))
}

// finish expands the workloads and returns everything.
func (l *loader) finish() (model.Objects, []Warning, []DocumentError) {
	o := model.Objects{NodeSelectors: make(map[model.PodID]model.Selector), Workloads: make(map[model.PodID]model.WorkloadID),
		Places: make(map[string]model.Place, len(l.places))}
	for name, at := range l.places {
		o.Places[name] = model.Place{File: at.File, Line: at.Line}
	}
	workloads := make(map[objectID]found)
	for id, f := range l.found {
		if f.kind.Put == nil {
			workloads[id] = f
			continue
		}
		f.kind.Put(&o, f.value)
	}
	o.Sort()
	l.sharedAddresses(o.Pods)
	explicit := make(map[model.PodID]bool, len(o.Pods))
	for _, p := range o.Pods {
		explicit[p.PodID] = true
	}
	l.expand(&o, workloads, explicit)
	if len(explicit) > l.limits.Pods {
		l.at = DocumentError{File: l.at.File}
		l.reject(convert.Remark{Detail: fmt.Sprintf("%d pods are more than the limit of %d: remove some or raise the limit", len(explicit), l.limits.Pods)})
	}
	o.Sort()
	return o, l.warnings, l.errors
}

// sharedAddresses warns about pods with the address of another one: only one of them has it.
func (l *loader) sharedAddresses(pods []*model.Pod) {
	owners := make(map[netip.Addr]*model.Pod)
	for _, p := range pods {
		if !p.Policed() {
			continue
		}
		for _, a := range p.IPs {
			if other := owners[a]; other != nil && other != p {
				l.at = l.places[convert.ObjectName("Pod", p.Namespace, p.Name)]
				l.warn(convert.Remark{Field: "status.podIP", Detail: fmt.Sprintf("%s is also that of pod %s: it counts for the younger, or else the last by name", a, other.PodID)})
			}
			owners[a] = p
		}
	}
}

// expand adds the pods of workloads. An explicit Pod object takes precedence.
func (l *loader) expand(o *model.Objects, workloads map[objectID]found, explicit map[model.PodID]bool) {
	expanded := make(map[model.PodID]*model.Pod)
	for _, id := range slices.SortedFunc(maps.Keys(workloads), compareWorkloads) {
		w := workloads[id].value.(*convert.Workload)
		if l.strict == convert.Stored && (len(explicit) > 0 || w.Owned) {
			continue // its pods exist, or its owner represents them
		}
		l.at = workloads[id].at
		pods, err := w.Expand(o.Nodes, l.limits.Pods-len(explicit)-len(expanded))
		if err != nil {
			l.reject(convert.Remark{Detail: err.Error()})
			continue
		}
		for _, p := range pods {
			if explicit[p.PodID] {
				continue
			}
			if expanded[p.PodID] != nil {
				l.warn(convert.Remark{Field: "metadata.name", Detail: fmt.Sprintf("pod %s also belongs to another workload: the last one counts", p.PodID)})
			}
			expanded[p.PodID], o.Workloads[p.PodID] = p, w.ID()
			delete(o.NodeSelectors, p.PodID)
			if !w.NodeSelector.Everything() {
				o.NodeSelectors[p.PodID] = w.NodeSelector
			}
		}
	}
	for _, p := range expanded {
		o.Pods = append(o.Pods, p)
	}
}

func compareWorkloads(a, b objectID) int {
	return slices.Compare([]string{a.namespace, a.name, a.kind}, []string{b.namespace, b.name, b.kind})
}
