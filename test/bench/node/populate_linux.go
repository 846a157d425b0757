// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// The number of concurrent clients.
const writers = 16

type object = map[string]any

// item is an object to create. A second request writes its status.
type item struct {
	resource schema.GroupVersionResource
	object   object
	status   object
}

var (
	coreV1        = schema.GroupVersion{Version: "v1"}
	networkPolicy = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
)

// kind describes the objects of one kind.
type kind struct {
	name  string
	n     int
	build func(int) item
}

func kinds() []kind {
	return []kind{{"namespaces", namespaces, makeNamespace}, {"nodes", nodes, makeNode}, {"policies", policies, makePolicy}, {"pods", pods, makePod}}
}

// populateFiles writes the cluster as manifests for agents that watch a directory. It splits them
// into files below the size limit of the agent.
func (b *bench) populateFiles(context.Context) error {
	const perFile = 1000
	for _, k := range kinds() {
		for first := 0; first < k.n; first += perFile {
			var items []object
			for i := first; i < min(first+perFile, k.n); i++ {
				it := k.build(i)
				it.object["status"] = it.status
				items = append(items, it.object)
			}
			text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(b.dir, "manifests", fmt.Sprintf("%s-%d.json", k.name, first)), text, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// populate creates the objects in the API server.
func (b *bench) populate(ctx context.Context) error {
	client, err := dynamic.NewForConfig(b.server.RESTConfig())
	if err != nil {
		return err
	}
	began := time.Now()
	for _, k := range kinds() {
		if err := createAll(ctx, client, k.n, k.build); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.log, "node: %d objects written in %.0f s\n", namespaces+nodes+policies+pods, time.Since(began).Seconds())
	return nil
}

func createAll(ctx context.Context, client dynamic.Interface, n int, build func(int) item) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := create(ctx, client, build(i)); err != nil {
					cancel(err) // the first error ends all writers
				}
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

func create(ctx context.Context, client dynamic.Interface, it item) error {
	u := &unstructured.Unstructured{Object: it.object}
	var at dynamic.ResourceInterface = client.Resource(it.resource)
	if ns := u.GetNamespace(); ns != "" {
		at = client.Resource(it.resource).Namespace(ns)
	}
	made, err := at.Create(ctx, u, metav1.CreateOptions{})
	if err != nil || it.status == nil {
		return err
	}
	made.Object["status"] = it.status
	_, err = at.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

func makeNamespace(i int) item {
	return item{resource: coreV1.WithResource("namespaces"), object: object{"apiVersion": "v1", "kind": "Namespace",
		"metadata": object{"name": namespaceName(i), "labels": object{"team": fmt.Sprintf("team-%d", i%20)}}}}
}

func namespaceName(i int) string { return fmt.Sprintf("ns-%d", i%namespaces) }

func makeNode(i int) item {
	cidr := fmt.Sprintf("10.%d.%d.0/24", 128+i>>8, i&255)
	return item{resource: coreV1.WithResource("nodes"),
		object: object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": fmt.Sprintf("node-%d", i), "labels": object{"kubernetes.io/os": "linux"}},
			"spec": object{"podCIDR": cidr, "podCIDRs": []any{cidr}}},
		status: object{"addresses": []any{object{"type": "InternalIP", "address": fmt.Sprintf("192.168.%d.%d", i>>8, i&255)}}}}
}

// makePod makes a pod that is about as large as real ones, including fields that the agent ignores.
func makePod(i int) item {
	ip := fmt.Sprintf("10.%d.%d.%d", 128+(i%nodes)>>8, (i%nodes)&255, 10+i/nodes)
	labels := object{"app": fmt.Sprintf("app-%d", i%500), "tier": fmt.Sprintf("tier-%d", i%5), "pod-template-hash": "6c5f7d8b9"}
	container := object{"name": "main", "image": "registry.example.com/app:1", "ports": []any{object{"name": "http", "containerPort": int64(8080)}},
		"env": []any{object{"name": "A", "value": "b"}, object{"name": "C", "value": "d"}}}
	return item{resource: coreV1.WithResource("pods"),
		object: object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": fmt.Sprintf("app-%d", i), "namespace": namespaceName(i), "labels": labels,
			"annotations": object{"checksum/config": "d2a84f4b8b650937ec8f73cd8be2c74add5a911ba64df27458ed8229da804a26"}},
			"spec": object{"nodeName": fmt.Sprintf("node-%d", i%nodes), "containers": []any{container}}},
		status: object{"phase": "Running", "podIP": ip, "podIPs": []any{object{"ip": ip}}}}
}

// makePolicy makes a policy. Every tenth one selects the pods of the measured node.
func makePolicy(i int) item {
	namespace, selects := namespaceName(i), object{"app": fmt.Sprintf("app-%d", i%500)}
	if i%10 == 0 {
		namespace, selects = probeNamespace, object{"app": "server"}
	}
	from := []any{object{"podSelector": object{"matchLabels": object{"app": fmt.Sprintf("app-%d", (i+7)%500)}},
		"namespaceSelector": object{"matchLabels": object{"team": fmt.Sprintf("team-%d", i%20)}}}}
	return item{resource: networkPolicy, object: object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": object{"name": fmt.Sprintf("policy-%d", i), "namespace": namespace},
		"spec": object{"podSelector": object{"matchLabels": selects},
			"ingress": []any{object{"from": from, "ports": []any{object{"port": int64(8000 + i%100)}}}}}}}
}
