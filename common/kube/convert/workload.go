// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// Workload is an object whose controller creates pods. In a directory of manifests it represents those
// pods.
type Workload struct {
	kind, namespace, name string
	// labels, ports, hostPorts, hostNetwork, node and fixedIPs are those of the pod template.
	labels      map[string]string
	ports       []model.NamedPort
	hostPorts   []model.HostPort
	hostNetwork bool
	node        string
	fixedIPs    string
	notes       []Remark // on parts of the template that are not used
	// NodeSelector is what the template requires of a node; for a DaemonSet it includes required affinity.
	NodeSelector model.Selector
	affinity     []model.Selector
	created      int64
	// Owned is true if another workload represents its pods.
	Owned bool
	// first and replicas number the pods of all kinds but DaemonSet.
	first, replicas int
}

// workloadParts holds the parts of a workload by kind, with the paths of template and replicas for errors.
type workloadParts struct {
	meta         *metav1.ObjectMeta
	kind         string
	template     *corev1.PodTemplateSpec
	templatePath *field.Path
	replicas     *int32
	replicasPath *field.Path
	first        int32
	// selector must match the template; nil for kinds whose controllers fill it in.
	selector *metav1.LabelSelector
}

// workloadKind returns a kind of workload, whose objects decode to a T. Pods stand for it: it has no noun.
func workloadKind[T any, P apiObject[T]](name, group string, parts func(*T) workloadParts) Kind {
	return Kind{Name: name, Group: group, Versions: []string{"v1"}, Namespaced: true,
		Read: reads[T, P](func(o *T, s Strictness) Result {
			p := parts(o)
			w, errs := convertWorkload(p)
			return Result{Value: &w, Warnings: append(p.mismatch(), w.notes...), Errs: append(validateMeta(p.meta, true, s), errs...)}
		})}
}

func replicationControllerKind() Kind {
	return workloadKind("ReplicationController", "", replicationControllerParts)
}
func deploymentKind() Kind  { return workloadKind("Deployment", "apps", deploymentParts) }
func replicaSetKind() Kind  { return workloadKind("ReplicaSet", "apps", replicaSetParts) }
func statefulSetKind() Kind { return workloadKind("StatefulSet", "apps", statefulSetParts) }
func daemonSetKind() Kind   { return workloadKind(kindDaemonSet, "apps", daemonSetParts) }
func jobKind() Kind         { return workloadKind(kindJob, "batch", jobParts) }
func cronJobKind() Kind     { return workloadKind("CronJob", "batch", cronJobParts) }

func deploymentParts(d *appsv1.Deployment) workloadParts {
	return workloadParts{meta: &d.ObjectMeta, kind: "Deployment", template: &d.Spec.Template, replicas: d.Spec.Replicas, selector: d.Spec.Selector}
}

func replicaSetParts(r *appsv1.ReplicaSet) workloadParts {
	return workloadParts{meta: &r.ObjectMeta, kind: "ReplicaSet", template: &r.Spec.Template, replicas: r.Spec.Replicas, selector: r.Spec.Selector}
}

func statefulSetParts(s *appsv1.StatefulSet) workloadParts {
	parts := workloadParts{meta: &s.ObjectMeta, kind: "StatefulSet", template: &s.Spec.Template, replicas: s.Spec.Replicas, selector: s.Spec.Selector}
	if s.Spec.Ordinals != nil {
		parts.first = s.Spec.Ordinals.Start
	}
	return parts
}

func daemonSetParts(d *appsv1.DaemonSet) workloadParts {
	return workloadParts{meta: &d.ObjectMeta, kind: kindDaemonSet, template: &d.Spec.Template, selector: d.Spec.Selector}
}

func replicationControllerParts(r *corev1.ReplicationController) workloadParts {
	template := r.Spec.Template
	if template == nil {
		template = &corev1.PodTemplateSpec{}
	}
	return workloadParts{meta: &r.ObjectMeta, kind: "ReplicationController", template: template, replicas: r.Spec.Replicas}
}

func jobParts(j *batchv1.Job) workloadParts {
	return workloadParts{meta: &j.ObjectMeta, kind: kindJob, template: &j.Spec.Template, replicas: jobPods(&j.Spec),
		replicasPath: field.NewPath("spec", "parallelism")}
}

func cronJobParts(c *batchv1.CronJob) workloadParts {
	path := field.NewPath("spec", "jobTemplate", "spec")
	return workloadParts{meta: &c.ObjectMeta, kind: "CronJob", template: &c.Spec.JobTemplate.Spec.Template, templatePath: path.Child("template"),
		replicas: jobPods(&c.Spec.JobTemplate.Spec), replicasPath: path.Child("parallelism")}
}

// mismatch reports a selector that does not match the template: the API server refuses such a workload, which has no pods then.
func (p workloadParts) mismatch() []Remark {
	if p.selector == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(p.selector)
	if err != nil || selector.Matches(labels.Set(p.template.Labels)) {
		return nil
	}
	return []Remark{{Field: "spec.selector", Detail: "does not match the labels of spec.template: the API server refuses the object; here it counts with its pods"}}
}

// jobPods returns how many pods of a Job run concurrently: parallelism, but not more than needed to
// complete.
func jobPods(j *batchv1.JobSpec) *int32 {
	if j.Completions != nil && *j.Completions < deref(j.Parallelism, 1) {
		return j.Completions
	}
	return j.Parallelism
}

func deref(p *int32, otherwise int32) int32 {
	if p == nil {
		return otherwise
	}
	return *p
}

const (
	kindDaemonSet = "DaemonSet"
	kindJob       = "Job"
)

// convertWorkload converts the common parts of the kinds.
func convertWorkload(parts workloadParts) (Workload, field.ErrorList) {
	spec := field.NewPath("spec")
	if parts.templatePath == nil {
		parts.templatePath = spec.Child("template")
	}
	if parts.replicasPath == nil {
		parts.replicasPath = spec.Child("replicas")
	}
	t := parts.template
	var errs field.ErrorList
	m := parts.meta
	w := Workload{kind: parts.kind, namespace: intern(m.Namespace), name: m.Name, created: created(m),
		Owned:  metav1.GetControllerOfNoCopy(m) != nil,
		labels: t.Labels, hostNetwork: t.Spec.HostNetwork, node: intern(t.Spec.NodeName),
		fixedIPs: t.Annotations[model.AnnotationAddresses],
		first:    int(parts.first), replicas: int(deref(parts.replicas, 1))}
	if w.replicas < 0 {
		errs = append(errs, field.Invalid(parts.replicasPath, w.replicas, "must be greater than or equal to 0"))
	}
	if w.first < 0 {
		errs = append(errs, field.Invalid(spec.Child("ordinals", "start"), w.first, "must be greater than or equal to 0"))
	}
	errs = append(errs, validateLabels(t.Labels, parts.templatePath.Child("metadata", "labels"))...)
	ports, more := namedPorts(&t.Spec, parts.templatePath.Child("spec"))
	errs = append(errs, more...)
	w.ports = ports
	w.hostPorts, more, w.notes = hostPorts(&t.Spec, parts.templatePath.Child("spec"))
	errs = append(errs, more...)
	w.NodeSelector, more = nodeSelector(t.Spec.NodeSelector, parts.templatePath.Child("spec", "nodeSelector"))
	errs = append(errs, more...)
	w.affinity, more = requiredAffinity(t.Spec.Affinity, parts.templatePath.Child("spec", "affinity", "nodeAffinity",
		"requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"))
	return w, append(errs, more...)
}

// ID names the workload.
func (w *Workload) ID() model.WorkloadID {
	return model.WorkloadID{Kind: w.kind, Namespace: w.namespace, Name: w.name}
}

// Expand creates the pods of a workload, at most limit of them. Their addresses are unknown.
func (w *Workload) Expand(nodes []*model.Node, limit int) ([]*model.Pod, error) {
	if w.kind != kindDaemonSet {
		if w.replicas > limit {
			return nil, fmt.Errorf("%d pods, together with the rest more than the limit of pods: lower the number or raise the limit", w.replicas)
		}
		var pods []*model.Pod
		for i := w.first; i < w.first+w.replicas; i++ {
			pods = append(pods, w.pod(strconv.Itoa(i), w.node))
		}
		return pods, nil
	}
	if len(nodes) == 0 {
		return []*model.Pod{w.pod("0", w.node)}, nil
	}
	var pods []*model.Pod
	for _, n := range nodes {
		if !w.runsOn(n) {
			continue
		}
		if len(pods) == limit {
			return nil, fmt.Errorf("a pod per node, together with the rest more than the limit of pods: raise the limit")
		}
		pods = append(pods, w.pod(n.Name, n.Name))
	}
	return pods, nil
}

// runsOn reports whether a DaemonSet has a pod on the node, according to the node's labels. It ignores
// taints.
func (w *Workload) runsOn(n *model.Node) bool {
	matches := func(s model.Selector) bool { return s.Matches(n.Labels) }
	return w.NodeSelector.Matches(n.Labels) && (len(w.affinity) == 0 || slices.ContainsFunc(w.affinity, matches)) &&
		(w.node == "" || w.node == n.Name)
}

// pod creates one pod, with the labels that its controller adds and that are the same in every run.
func (w *Workload) pod(suffix, node string) *model.Pod {
	name := w.name + "-" + suffix
	labels := make(map[string]string, len(w.labels)+2)
	for k, v := range w.labels {
		labels[k] = v
	}
	switch w.kind {
	case "StatefulSet":
		labels[appsv1.StatefulSetPodNameLabel] = name
		labels[appsv1.PodIndexLabel] = suffix
	case kindJob:
		labels[batchv1.JobNameLabel] = w.name
		labels["job-name"] = w.name
	}
	return &model.Pod{PodID: model.PodID{Namespace: w.namespace, Name: name}, Labels: model.MakeLabels(labels),
		Node: node, HostNetwork: w.hostNetwork, Created: w.created, Ports: w.ports, HostPorts: w.hostPorts, FixedIPs: w.fixedIPs}
}
