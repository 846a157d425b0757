// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/isthmus-net/isthmus/common/model"
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

// kind is a kind of object that this package reads.
type kind struct {
	name     string
	group    string
	versions []string
	take     func(l *loader, h header, raw []byte)
}

// kinds lists the kinds that are read; all others are ignored.
func kinds() []kind {
	return []kind{
		{"Namespace", "", []string{"v1"}, takeNamespace},
		{"Node", "", []string{"v1"}, takeNode},
		{"Pod", "", []string{"v1"}, takePod},
		{"Service", "", []string{"v1"}, takeService},
		{"ReplicationController", "", []string{"v1"}, takeWorkload(replicationControllerParts,
			func(o *corev1.ReplicationController) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{"Deployment", "apps", []string{"v1"}, takeWorkload(deploymentParts,
			func(o *appsv1.Deployment) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{"ReplicaSet", "apps", []string{"v1"}, takeWorkload(replicaSetParts,
			func(o *appsv1.ReplicaSet) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{"StatefulSet", "apps", []string{"v1"}, takeWorkload(statefulSetParts,
			func(o *appsv1.StatefulSet) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{kindDaemonSet, "apps", []string{"v1"}, takeWorkload(daemonSetParts,
			func(o *appsv1.DaemonSet) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{kindJob, "batch", []string{"v1"}, takeWorkload(jobParts,
			func(o *batchv1.Job) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{"CronJob", "batch", []string{"v1"}, takeWorkload(cronJobParts,
			func(o *batchv1.CronJob) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{kindNetworkPolicy, networkingv1.GroupName, []string{"v1"}, takeNetworkPolicy},
		{kindClusterNetworkPolicy, clusterPolicyGroup, []string{"v1alpha2", "v1beta1"},
			takeClusterPolicy(convertClusterNetworkPolicy, func(o *v1alpha2.ClusterNetworkPolicy) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{kindAdminNetworkPolicy, clusterPolicyGroup, []string{"v1alpha1"},
			takeClusterPolicy(convertAdminNetworkPolicy, func(o *v1alpha1.AdminNetworkPolicy) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{kindBaselineAdminNetworkPolicy, clusterPolicyGroup, []string{"v1alpha1"},
			takeClusterPolicy(convertBaselineAdminNetworkPolicy, func(o *v1alpha1.BaselineAdminNetworkPolicy) *metav1.ObjectMeta { return &o.ObjectMeta })},
		{model.KindDenyList, isthmusGroup, []string{"v1alpha1"}, takeDenyList},
	}
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
		l.reject(remark{"kind", "missing: every document must be a Kubernetes object with apiVersion and kind"})
		return
	}
	if item, ok := strings.CutSuffix(h.Kind, "List"); ok && l.isList(h, item) {
		l.takeList(h, item, raw)
		return
	}
	if l.objects++; l.objects > l.limits.Objects {
		if l.objects == l.limits.Objects+1 {
			l.reject(remark{"", fmt.Sprintf("more than %d objects: remove some or raise the limit", l.limits.Objects)})
		}
		return
	}
	k, problem := l.find(h)
	switch {
	case problem != nil:
		l.reject(*problem)
	case k != nil:
		k.take(l, h, raw)
	default:
		l.ignored[h.APIVersion+" "+h.Kind]++
	}
}

// find returns the kind of an object; nil if the object is to be ignored.
func (l *loader) find(h header) (*kind, *remark) {
	for i := range l.kinds {
		k := &l.kinds[i]
		switch {
		case k.name != h.Kind && strings.EqualFold(k.name, h.Kind) && k.group == h.group():
			return nil, &remark{"kind", quoted(h.Kind) + ": write " + k.name}
		case k.name != h.Kind:
		case slices.Contains(k.versions, h.version()) && k.group == h.group():
			return k, nil
		case k.group == h.group() || h.group() == "" || h.group() == "extensions":
			// A removed API, or a typing error. Ignoring the object would leave it unenforced.
			return nil, &remark{"apiVersion", quoted(h.APIVersion) + " is not served: use " + k.apiVersion()}
		}
	}
	if h.group() == clusterPolicyGroup {
		return nil, &remark{"kind", fmt.Sprintf("%s %s is not known: use %s", quoted(h.APIVersion), quoted(h.Kind), kindClusterNetworkPolicy)}
	}
	if h.group() == isthmusGroup {
		return nil, &remark{"kind", fmt.Sprintf("%s %s is not known: use %s", quoted(h.APIVersion), quoted(h.Kind), model.KindDenyList)}
	}
	if strings.HasSuffix(h.Kind, "NetworkPolicy") {
		l.warn(remark{"kind", fmt.Sprintf("%s of %s is a policy of another product and is not enforced", h.Kind, bounded(h.APIVersion, maxValue))})
	}
	return nil, nil
}

func (h header) version() string { return h.APIVersion[strings.LastIndexByte(h.APIVersion, '/')+1:] }

func (k *kind) apiVersion() string {
	if k.group == "" {
		return k.versions[0]
	}
	return k.group + "/" + k.versions[0]
}

// isList distinguishes v1 List, and lists of the kinds that are read, from kinds of other groups whose
// names end in List.
func (l *loader) isList(h header, item string) bool {
	if item == "" {
		return h.APIVersion == "v1" || h.APIVersion == ""
	}
	return slices.ContainsFunc(l.kinds, func(k kind) bool { return k.name == item && k.group == h.group() })
}

func (l *loader) takeList(h header, item string, raw []byte) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &list); err != nil {
		l.reject(remark{"items", "must be a list of objects"})
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

// decode reads an object strictly: unknown fields are warnings, values of a wrong type are errors.
func decode[T any](l *loader, raw []byte) (*T, bool) {
	var object T
	strict, err := kjson.UnmarshalStrict(raw, &object)
	if err != nil {
		l.reject(misfitRemarks(raw, reflect.TypeFor[T](), err)...)
		return nil, false
	}
	ok := true
	for _, e := range strict {
		path := ""
		if fe, is := e.(kjson.FieldError); is {
			path = fe.FieldPath()
		}
		switch {
		case strings.HasPrefix(e.Error(), "duplicate"):
			ok = false
			l.reject(remark{path, "written twice: write it once"})
		case path == "status" && strings.HasPrefix(l.at.Object, kindNetworkPolicy+" "):
			// NetworkPolicy had a status in 1.24 to 1.27; files still carry it.
		case l.strict == stored && !strings.Contains(l.at.Object, "Policy "):
			// A field of a newer API; for other kinds the known fields are enough.
		default:
			l.warn(remark{path, "no such field; it is ignored, as the API server does"})
		}
	}
	return &object, ok
}

func misfitRemarks(raw []byte, t reflect.Type, err error) []remark {
	if found := remarks(misfits(raw, t)); len(found) > 0 {
		return found
	}
	return []remark{{"", oneLine(strings.TrimPrefix(err.Error(), "json: ")) + ": use the type that the API defines"}}
}
