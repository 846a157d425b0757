// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	manyPods       = 100_000
	manyNamespaces = 200
)

// bigPod is a pod that is about as large as real ones, including fields that the source ignores.
func bigPod(i int) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "ns-"+strconv.Itoa(i%manyNamespaces), "app-6c5f7d8b9-"+strconv.Itoa(i), "0b7c3f4e-0000-4000-8000-000000000000"
	p.ResourceVersion = strconv.Itoa(1000 + i)
	p.CreationTimestamp = metav1.NewTime(time.Unix(1_700_000_000+int64(i), 0))
	p.Labels = map[string]string{"app": "app-" + strconv.Itoa(i%1000), "tier": "t" + strconv.Itoa(i%5), "pod-template-hash": "6c5f7d8b9"}
	p.Annotations = map[string]string{"checksum/config": "d2a84f4b8b650937ec8f73cd8be2c74add5a911ba64df27458ed8229da804a26"}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 2000))}}
	p.Spec.NodeName = "node-" + strconv.Itoa(i%1000)
	for c := range 2 {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c" + strconv.Itoa(c), Image: "registry.example.com/app:1",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: int32(8080 + c), Protocol: corev1.ProtocolTCP}},
			Env:   []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "C", Value: "d"}}})
	}
	ip := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}, {IP: fmt.Sprintf("fd00::%x", i)}}}
	return p
}

// benchSource is an APIServer with a feed of pods, and one with their namespaces.
func benchSource() (*APIServer, *feed, *collector) {
	a := &APIServer{log: kubetest.Quiet(), wake: make(chan struct{}, 1), feeds: make(map[string]*feed), faults: make(map[string][]string), early: newEarly(), uids: make(map[string]string), discovered: true}
	namespaces := &feed{kind: kindOf("Namespace"), notify: a.notify, log: a.log}
	a.addFeed(namespaces)
	var all []any
	for i := range manyNamespaces {
		all = append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns-" + strconv.Itoa(i)}})
	}
	_ = namespaces.Replace(all, "")
	f := &feed{kind: kindOf("Pod"), notify: a.notify, log: a.log}
	a.addFeed(f)
	return a, f, &collector{snapshot: &model.Snapshot{}}
}

// pages converts pods page by page, as they arrive.
func pages(b *testing.B, f *feed) []any {
	b.Helper()
	var records []any
	for i := 0; i < manyPods; i += 500 {
		page := &corev1.PodList{}
		for j := range 500 {
			page.Items = append(page.Items, *bigPod(i + j))
		}
		list, err := f.trim(page)
		if err != nil {
			b.Fatal(err)
		}
		for _, o := range list.(*internalversion.List).Items {
			records = append(records, o)
		}
	}
	return records
}

// BenchmarkInitialSnapshot converts 100,000 pods and builds a snapshot. It does not count the
// creation of the API objects.
func BenchmarkInitialSnapshot(b *testing.B) {
	for range b.N {
		a, f, c := benchSource()
		b.StopTimer()
		var raw []k8sruntime.Object
		for i := range manyPods {
			raw = append(raw, bigPod(i))
		}
		b.StartTimer()
		records := make([]any, len(raw))
		for i, o := range raw {
			records[i] = f.record(o)
		}
		if err := f.Replace(records, ""); err != nil {
			b.Fatal(err)
		}
		if s, ok := a.collect(c); !ok || s.Pods.Len() != manyPods {
			b.Fatal("no snapshot")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/manyPods, "ns/pod")
}

// BenchmarkPodEvent changes one of 100,000 pods and builds the next snapshot.
func BenchmarkPodEvent(b *testing.B) {
	a, f, c := benchSource()
	if err := f.Replace(pages(b, f), ""); err != nil {
		b.Fatal(err)
	}
	if _, ok := a.collect(c); !ok {
		b.Fatal("no snapshot")
	}
	var events []*corev1.Pod
	for i := range 1000 {
		events = append(events, bigPod(i*97))
	}
	n := 0
	b.Run("change", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			n++
			p := events[n%len(events)]
			p.Labels["changed"] = strconv.Itoa(n)
			if err := f.Update(p); err != nil {
				b.Fatal(err)
			}
			if _, ok := a.collect(c); !ok {
				b.Fatal("no snapshot")
			}
		}
	})
	b.Run("nothing new", func(b *testing.B) {
		b.ReportAllocs()
		same := bigPod(5)
		for range b.N {
			if err := f.Update(same); err != nil {
				b.Fatal(err)
			}
			if _, ok := a.collect(c); ok {
				b.Fatal("a snapshot")
			}
		}
	})
}

// BenchmarkMemory measures the memory of 100,000 pods after a garbage collection.
func BenchmarkMemory(b *testing.B) {
	for range b.N {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		a, f, c := benchSource()
		if err := f.Replace(pages(b, f), ""); err != nil {
			b.Fatal(err)
		}
		s, ok := a.collect(c)
		if !ok {
			b.Fatal("no snapshot")
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/manyPods, "B/pod")
		runtime.KeepAlive(s)
	}
}
