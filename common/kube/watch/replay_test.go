// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// replayed is a cluster that random events change, and the source that receives them.
type replayed struct {
	*rand.Rand
	a          *APIServer
	namespaces *feed
	pods       *feed
	policies   *feed
	c          *collector
	// live are the objects that exist, by kind and name.
	live map[string]map[string]runtime.Object
}

func newReplayed(seed uint64) *replayed {
	a := &APIServer{log: kubetest.Quiet(), wake: make(chan struct{}, 1), feeds: make(map[string]*feed), faults: make(map[string][]string), early: newEarly(), uids: make(map[string]string), discovered: true}
	r := &replayed{Rand: rand.New(rand.NewPCG(seed, 3)), a: a, c: &collector{snapshot: &model.Snapshot{}},
		namespaces: &feed{kind: kindOf("Namespace"), notify: a.notify, log: a.log},
		pods:       &feed{kind: kindOf("Pod"), notify: a.notify, log: a.log},
		policies:   &feed{kind: kindOf("NetworkPolicy"), notify: a.notify, log: a.log},
		live:       map[string]map[string]runtime.Object{"Namespace": {}, "Pod": {}, "NetworkPolicy": {}}}
	for _, f := range r.feeds() {
		a.addFeed(f)
		_ = f.Replace(nil, "")
	}
	return r
}

func (r *replayed) feeds() []*feed { return []*feed{r.namespaces, r.pods, r.policies} }

// event creates, changes or deletes an object, and sends the event the given number of times.
func (r *replayed) event(t *testing.T, times int) {
	t.Helper()
	name := fmt.Sprint("o", r.IntN(10))
	meta := metav1.ObjectMeta{Namespace: []string{"shop", "bank"}[r.IntN(2)], Name: name, Labels: map[string]string{"a": fmt.Sprint(r.IntN(3))}}
	var f *feed
	var o runtime.Object
	switch r.IntN(6) {
	case 0:
		name, meta = meta.Namespace, metav1.ObjectMeta{Name: meta.Namespace, Labels: meta.Labels}
		f, o = r.namespaces, &corev1.Namespace{ObjectMeta: meta}
	case 1, 2, 3:
		f, o = r.pods, &corev1.Pod{ObjectMeta: meta, Status: corev1.PodStatus{PodIP: fmt.Sprintf("10.0.0.%d", r.IntN(250))}}
	default:
		f, o = r.policies, &networkingv1.NetworkPolicy{ObjectMeta: meta, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: meta.Labels}}}
	}
	gone := r.IntN(4) == 0
	name = meta.Namespace + "/" + name
	for range times {
		var err error
		_, exists := r.live[f.kind.Name][name]
		switch {
		case gone:
			err = f.Delete(o)
			delete(r.live[f.kind.Name], name)
		case exists:
			err = f.Update(o)
			r.live[f.kind.Name][name] = o
		default:
			err = f.Add(o)
			r.live[f.kind.Name][name] = o
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// relist sends all objects at once, as after a lost connection.
func (r *replayed) relist(t *testing.T) {
	t.Helper()
	for _, f := range r.feeds() {
		var all []any
		for _, o := range r.live[f.kind.Name] {
			all = append(all, o)
		}
		if err := f.Replace(all, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// check compares the snapshot with one that is made from the existing objects.
func (r *replayed) check(t *testing.T, what string) {
	t.Helper()
	r.a.collect(r.c)
	namespaces := make(map[string]*model.Namespace)
	var pods []*model.Pod
	var policies []*model.Policy
	for _, o := range r.live["Namespace"] {
		ns := r.namespaces.kind.Record(o).Value.(*model.Namespace)
		namespaces[ns.Name] = ns
	}
	for _, o := range r.live["Pod"] {
		if pod := r.pods.kind.Record(o).Value.(*model.Pod); namespaces[pod.Namespace] != nil { // else it is unknown
			pods = append(pods, pod)
		}
	}
	for _, o := range r.live["NetworkPolicy"] {
		policies = append(policies, r.policies.kind.Record(o).Value.(*model.Policy))
	}
	want := model.MakeSnapshot(nil, nil, pods, policies)
	want.Namespaces = immutable.MakeMap(namespaces)
	if _, changed := convert.ReplaceSnapshot(r.c.snapshot, want); changed {
		t.Fatalf("%s: %d pods and %d policies, want %d and %d, or other contents", what, r.c.snapshot.Pods.Len(), r.c.snapshot.Policies.Len(),
			want.Pods.Len(), want.Policies.Len())
	}
}

// TestReplay sends the same events one by one, in groups, twice each, and with complete lists in
// between. The final snapshot is always the same.
func TestReplay(t *testing.T) {
	for seed := range uint64(20) {
		for _, way := range []string{"one by one", "in bunches", "twice", "with lists", "all at once"} {
			r := newReplayed(seed)
			for i := range 200 {
				times := 1
				if way == "twice" {
					times = 2
				}
				r.event(t, times)
				switch {
				case way == "one by one", way == "in bunches" && i%7 == 0, way == "twice":
					r.check(t, fmt.Sprintf("seed %d, %s, event %d", seed, way, i))
				case way == "with lists" && i%11 == 0:
					r.relist(t)
				case way == "with lists" && i%5 == 0:
					r.check(t, fmt.Sprintf("seed %d, %s, event %d", seed, way, i))
				}
			}
			r.check(t, fmt.Sprintf("seed %d, %s", seed, way))
		}
	}
}

func kindOf(name string) convert.Kind {
	k, _ := convert.KindOf(name)
	return k
}
