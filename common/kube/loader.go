// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// Objects are the objects of a set of manifests, each list sorted by name.
type Objects struct {
	Namespaces []*model.Namespace
	Nodes      []*model.Node
	// Pods are the Pod objects and the pods of the workloads.
	Pods     []*model.Pod
	Policies []*model.Policy
	// DenyLists are without their invalid entries.
	DenyLists []*model.DenyList
	// Services are for checks of manifests only.
	Services []*model.Service
	// NodeSelectors are the nodes that pods of workloads require; pods without requirements are not listed.
	NodeSelectors map[model.PodID]model.Selector
}

// Snapshot builds a snapshot of the objects.
func (o Objects) Snapshot() *model.Snapshot {
	s := model.MakeSnapshot(o.Namespaces, o.Nodes, o.Pods, o.Policies)
	lists := make(map[string]*model.DenyList, len(o.DenyLists))
	for _, l := range o.DenyLists {
		lists[l.Name] = l
	}
	s.DenyLists = immutable.MakeMap(lists)
	return s
}

// Parse parses the text of one file of manifests. Errors use the name; a name that ends in .json means
// JSON. The returned objects are those without errors.
func Parse(name string, data []byte, limits Limits) (Objects, []Warning, []DocumentError) {
	return Reading{Limits: limits}.Parse(name, data)
}

// workloadID identifies a workload. Pods of two kinds of workloads may have one name, the workloads do not.
type workloadID struct{ kind, namespace, name string }

// loader collects the objects of several files. If two objects have one name the later one counts.
type loader struct {
	limits   Limits
	strict   strictness
	kinds    []kind
	at       DocumentError // the position of reading
	warnings []Warning
	errors   []DocumentError
	objects  int
	// ignored counts objects of other kinds.
	ignored map[string]int
	// places maps a name to the place of its last object.
	places map[string]DocumentError

	namespaces map[string]*model.Namespace
	nodes      map[string]*model.Node
	pods       map[model.PodID]*model.Pod
	policies   map[model.Origin]*model.Policy
	denyLists  map[string]*model.DenyList
	services   map[string]*model.Service
	workloads  map[workloadID]placedWorkload
	// selectors are the nodeSelectors of explicit pods.
	selectors map[model.PodID]model.Selector
	// generated counts the objects of a kind, namespace and generateName.
	generated map[string]int
}

type placedWorkload struct {
	workload
	at DocumentError
	// owned is true if another workload represents its pods.
	owned bool
}

func newLoader(r Reading) *loader {
	return &loader{
		limits:     r.Limits,
		strict:     r.strictness(),
		kinds:      kinds(),
		ignored:    make(map[string]int),
		places:     make(map[string]DocumentError),
		namespaces: make(map[string]*model.Namespace),
		nodes:      make(map[string]*model.Node),
		pods:       make(map[model.PodID]*model.Pod),
		policies:   make(map[model.Origin]*model.Policy),
		denyLists:  make(map[string]*model.DenyList),
		services:   make(map[string]*model.Service),
		workloads:  make(map[workloadID]placedWorkload),
		selectors:  make(map[model.PodID]model.Selector),
		generated:  make(map[string]int),
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
			l.reject(remark{"", err.Error()})
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
			l.reject(remark{"", err.Error()})
			continue
		}
		l.take(raw)
	}
}

// maxRemarks bounds the errors, and the warnings, that are kept.
const maxRemarks = 1000

func (l *loader) reject(problems ...remark) {
	for _, p := range problems {
		if len(l.errors) == maxRemarks {
			p = remark{"", "more errors were found: fix the first ones and try again"}
		}
		if e, ok := l.place(p, len(l.errors)); ok {
			l.errors = append(l.errors, e)
		}
	}
}

func (l *loader) warn(notes ...remark) {
	for _, n := range notes {
		if len(l.warnings) == maxRemarks {
			n = remark{"", "there are more warnings"}
		}
		if w, ok := l.place(n, len(l.warnings)); ok {
			l.warnings = append(l.warnings, Warning(w))
		}
	}
}

// place returns the position of a remark; it reports false if there are too many.
func (l *loader) place(r remark, have int) (DocumentError, bool) {
	e := l.at
	e.Field, e.Detail = bounded(r.field, 2*maxValue), bounded(r.detail, 5*maxValue)
	return e, have <= maxRemarks
}

// accept reports errors, and whether the object is used. An object with errors is not, unless it is stored
// and has a name. It warns about an earlier object of that name.
func (l *loader) accept(errs field.ErrorList) bool {
	switch nameless := strings.HasSuffix(l.at.Object, noName); {
	case nameless && len(errs) == 0:
		l.reject(remark{"metadata.name", "missing: name the object"})
		return false
	case len(errs) > 0 && (l.strict == written || nameless):
		l.reject(remarks(errs)...)
		return false
	}
	l.warn(remarks(errs)...)
	if was, ok := l.places[l.at.Object]; ok {
		l.warn(remark{"metadata.name", fmt.Sprintf("also in %s, document %d: the last one counts", was.File, was.Document)})
	}
	l.places[l.at.Object] = l.at
	return true
}

func takeNamespace(l *loader, h header, raw []byte) {
	o, ok := decode[corev1.Namespace](l, raw)
	if !ok {
		return
	}
	l.clusterWide(&o.ObjectMeta, h.Kind)
	ns, errs := convertNamespace(o, l.strict)
	if l.accept(errs) {
		l.namespaces[ns.Name] = ns
	}
}

func takeNode(l *loader, h header, raw []byte) {
	o, ok := decode[corev1.Node](l, raw)
	if !ok {
		return
	}
	l.clusterWide(&o.ObjectMeta, h.Kind)
	n, errs := convertNode(o, l.strict)
	if l.accept(errs) {
		l.nodes[n.Name] = n
	}
}

// inNamespace sets the namespace that kubectl would set.
func (l *loader) inNamespace(m *metav1.ObjectMeta, kind string) {
	if m.Namespace == "" {
		m.Namespace = metav1.NamespaceDefault
	}
	l.generateName(m, kind)
	l.at.Object = objectName(kind, m.Namespace, m.Name)
}

// clusterWide drops the namespace of a cluster-scoped object, as kubectl does.
func (l *loader) clusterWide(m *metav1.ObjectMeta, kind string) {
	m.Namespace = ""
	l.generateName(m, kind)
	l.at.Object = objectName(kind, "", m.Name)
}

// maxGenerated is how many bytes of generateName the API server keeps.
const maxGenerated = 58

// generateName names an object that leaves the end of its name to the API server, which appends five
// characters. Here they are digits, by the order of the documents, so that names are stable from one
// reading to the next.
func (l *loader) generateName(m *metav1.ObjectMeta, kind string) {
	if m.Name != "" || m.GenerateName == "" {
		return
	}
	key := kind + " " + m.Namespace + "/" + m.GenerateName
	l.generated[key]++
	m.Name = fmt.Sprintf("%s%05d", m.GenerateName[:min(len(m.GenerateName), maxGenerated)], l.generated[key])
}

func takePod(l *loader, h header, raw []byte) {
	o, ok := decode[corev1.Pod](l, raw)
	if !ok {
		return
	}
	l.inNamespace(&o.ObjectMeta, h.Kind)
	pod, errs := convertPod(o, l.strict)
	wants, more := nodeSelector(o.Spec.NodeSelector, field.NewPath("spec", "nodeSelector"))
	if !l.accept(append(errs, more...)) {
		return
	}
	l.pods[pod.PodID] = pod
	delete(l.selectors, pod.PodID)
	if !wants.Everything() {
		l.selectors[pod.PodID] = wants
	}
}

func takeNetworkPolicy(l *loader, h header, raw []byte) {
	o, ok := decode[networkingv1.NetworkPolicy](l, raw)
	if !ok {
		return
	}
	l.inNamespace(&o.ObjectMeta, h.Kind)
	defaultNetworkPolicy(o)
	p, errs := convertNetworkPolicy(o, l.strict)
	l.takePolicy(converted{policy: p, errs: errs, enforced: enforcedNetworkPolicy(o, p)})
}

func (l *loader) takePolicy(c converted) {
	if !l.accept(c.errs) {
		return
	}
	l.warn(c.warnings...)
	if len(c.errs) > 0 {
		l.warn(remark{"", "the policy is not valid: " + c.enforced})
	}
	l.policies[c.policy.Origin.Key()] = c.policy
}

func takeClusterPolicy[T any](convert func(*T, strictness) converted, meta func(*T) *metav1.ObjectMeta) func(*loader, header, []byte) {
	return func(l *loader, h header, raw []byte) {
		raw = integers(raw)
		var lost salvaged
		o := new(T)
		if l.strict == stored {
			o, lost = salvage[T](raw)
		}
		if len(lost.errs) == 0 {
			var ok bool
			if o, ok = decode[T](l, raw); !ok {
				return
			}
		}
		l.clusterWide(meta(o), h.Kind)
		c := convert(o, l.strict)
		c.lose(lost)
		if l.strict == written {
			required, usual := missing(raw, h.Kind)
			c.errs, c.warnings = append(required, c.errs...), append(c.warnings, remarks(usual)...)
		}
		l.takePolicy(c)
	}
}

func takeWorkload[T any](parts func(*T) workloadParts, meta func(*T) *metav1.ObjectMeta) func(*loader, header, []byte) {
	return func(l *loader, h header, raw []byte) {
		o, ok := decode[T](l, raw)
		if !ok {
			return
		}
		m := meta(o)
		l.inNamespace(m, h.Kind)
		w, errs := convertWorkload(parts(o))
		w.namespace, w.name, w.created = intern(m.Namespace), m.Name, created(m)
		if l.accept(append(validateMeta(m, true, l.strict), errs...)) {
			l.workloads[workloadID{h.Kind, w.namespace, w.name}] = placedWorkload{w, l.at, metav1.GetControllerOfNoCopy(m) != nil}
		}
	}
}

// finish expands the workloads and returns everything.
func (l *loader) finish() (Objects, []Warning, []DocumentError) {
	o := Objects{Namespaces: sorted(l.namespaces, strings.Compare), Nodes: sorted(l.nodes, strings.Compare),
		Policies: sorted(l.policies, model.Origin.Compare), DenyLists: sorted(l.denyLists, strings.Compare),
		Services: sorted(l.services, strings.Compare), NodeSelectors: l.selectors}
	expanded := make(map[model.PodID]*model.Pod)
	for _, id := range slices.SortedFunc(maps.Keys(l.workloads), compareWorkloads) {
		w := l.workloads[id]
		if l.strict == stored && (len(l.pods) > 0 || w.owned) {
			continue // its pods exist, or its owner represents them
		}
		l.at = w.at
		pods, err := w.expand(o.Nodes, l.limits.Pods-len(l.pods)-len(expanded))
		if err != nil {
			l.reject(remark{"", err.Error()})
			continue
		}
		for _, p := range pods {
			if l.pods[p.PodID] != nil {
				continue // an explicit Pod object takes precedence
			}
			if expanded[p.PodID] != nil {
				l.warn(remark{"metadata.name", fmt.Sprintf("pod %s also belongs to another workload: the last one counts", p.PodID)})
			}
			expanded[p.PodID] = p
			delete(o.NodeSelectors, p.PodID)
			if !w.nodeSelector.Everything() {
				o.NodeSelectors[p.PodID] = w.nodeSelector
			}
		}
	}
	if len(l.pods) > l.limits.Pods {
		l.at = DocumentError{File: l.at.File}
		l.reject(remark{"", fmt.Sprintf("%d pods are more than the limit of %d: remove some or raise the limit", len(l.pods), l.limits.Pods)})
	}
	maps.Copy(expanded, l.pods)
	o.Pods = sorted(expanded, model.PodID.Compare)
	return o, l.warnings, l.errors
}

func compareWorkloads(a, b workloadID) int {
	return slices.Compare([]string{a.namespace, a.name, a.kind}, []string{b.namespace, b.name, b.kind})
}

func sorted[K comparable, V any](m map[K]V, compare func(a, b K) int) []V {
	var out []V
	for _, k := range slices.SortedFunc(maps.Keys(m), compare) {
		out = append(out, m[k])
	}
	return out
}
