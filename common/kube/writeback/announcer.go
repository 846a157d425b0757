// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// Announcer writes a node's NodeInfo into annotations of its Node object. It writes through the Node's
// status. It therefore needs the right that the kubelet has for its own Node, and none to change labels and
// taints.
type Announcer struct {
	node   string
	client dynamic.Interface
	log    *slog.Logger
	writes *prometheus.CounterVec

	wake chan struct{} // capacity 1

	mu   sync.Mutex
	want *model.NodeInfo // nil until there is something to write
}

// announcer is the field manager of the annotations.
const announcer = "isthmus-fabric"

// Times between writes: a write takes a moment to appear in the watch.
const (
	announceRest  = 10 * time.Second
	announceRetry = time.Second
	announceMost  = time.Minute
)

// NewAnnouncer returns an Announcer with the credentials of a source.
func NewAnnouncer(node string, source *watch.APIServer, log *slog.Logger) (*Announcer, error) {
	client, err := source.Writer(1, 5)
	if err != nil {
		return nil, err
	}
	a := &Announcer{node: node, client: client, log: log, wake: make(chan struct{}, 1),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_announce_requests_total",
			Help: "Requests that write this node's fabric annotations to its Node object, by result."}, []string{"result"})}
	for _, result := range results {
		a.writes.WithLabelValues(result)
	}
	return a, nil
}

// results are those of requests: a counter begins with a series for each.
var results = []string{"ok", "error"}

// Describe implements prometheus.Collector.
func (a *Announcer) Describe(ch chan<- *prometheus.Desc) { a.writes.Describe(ch) }

// Collect implements prometheus.Collector.
func (a *Announcer) Collect(ch chan<- prometheus.Metric) { a.writes.Collect(ch) }

// Set requests a write of data that the Node object lacks. It does not block.
func (a *Announcer) Set(want model.NodeInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.want = &want
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// take returns the data to write, and clears the request.
func (a *Announcer) take() *model.NodeInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	want := a.want
	a.want = nil
	return want
}

// Run writes annotations until ctx is done; then it returns nil. After an error the agent calls Set again.
func (a *Announcer) Run(ctx context.Context) error {
	var written model.NodeInfo
	var at time.Time
	pause := announceRetry
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		}
		want := a.take()
		if want == nil || *want == written && time.Since(at) < announceRest {
			continue
		}
		err := a.write(ctx, *want)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			a.writes.WithLabelValues("ok").Inc()
			a.log.Info("wrote fabric annotations to the Node object", "node", a.node, "annotations", want.Text())
			written, at, pause = *want, time.Now(), announceRetry
			continue
		}
		a.writes.WithLabelValues("error").Inc()
		a.log.Warn("write fabric annotations to the Node object", "node", a.node, "annotations", want.Text(), "error", err, "retry_in", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, announceMost)
	}
}

// write applies the annotations. It removes those that an earlier write set and that want does not contain.
func (a *Announcer) write(ctx context.Context, want model.NodeInfo) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": a.node, "annotations": convert.AnnotationsOf(want)}}}
	_, err := a.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).ApplyStatus(ctx, a.node, u,
		metav1.ApplyOptions{FieldManager: announcer, Force: true})
	return err
}
