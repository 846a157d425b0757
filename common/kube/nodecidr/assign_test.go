// SPDX-License-Identifier: Apache-2.0

package nodecidr

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// cluster answers lists in pages of two nodes, and refuses a patch as an API server does.
type cluster struct {
	core.NodeInterface
	nodes map[string]*corev1.Node
	// refuse is the error of a patch, by node.
	refuse map[string]error
	// without is a node that disappears before its patch.
	without string
	writes  int
}

func (c *cluster) List(_ context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	if o.ResourceVersion != "" {
		return nil, errors.New("the list may come from a cache")
	}
	names := slices.Sorted(maps.Keys(c.nodes))
	start, _ := strconv.Atoi(o.Continue)
	end := min(start+2, len(names))
	var page corev1.NodeList
	for _, name := range names[start:end] {
		page.Items = append(page.Items, *c.nodes[name].DeepCopy())
	}
	if end < len(names) {
		page.Continue = strconv.Itoa(end)
	}
	return &page, nil
}

func (c *cluster) Patch(_ context.Context, name string, kind types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	if err := c.refuse[name]; err != nil {
		return nil, err
	}
	n := c.nodes[name]
	if n == nil || name == c.without {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	var patch corev1.Node
	if err := json.Unmarshal(data, &patch); err != nil || kind != types.MergePatchType {
		return nil, apierrors.NewBadRequest("malformed patch")
	}
	if patch.UID != n.UID || len(n.Spec.PodCIDRs) > 0 || patch.Spec.PodCIDR != patch.Spec.PodCIDRs[0] {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("another node, or ranges that cannot change"))
	}
	n.Spec, c.writes = patch.Spec, c.writes+1
	return n, nil
}

// newController returns a controller of 10.8.0.0/21 and fd08::/48: eight blocks of each family.
func newController(t *testing.T, nodes ...*corev1.Node) (*Controller, *cluster, *record.FakeRecorder) {
	t.Helper()
	c := &cluster{nodes: make(map[string]*corev1.Node), refuse: make(map[string]error)}
	for _, n := range nodes {
		n.UID = types.UID("uid-" + n.Name)
		c.nodes[n.Name] = n
	}
	events := record.NewFakeRecorder(100)
	cfg := Defaults()
	cfg.Ranges.Ranges = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/21"), netip.MustParsePrefix("fd08::/48")}
	return &Controller{cfg: cfg, log: slog.New(slog.DiscardHandler), nodes: c, metrics: newMetrics(), recorder: events,
		wake: make(chan struct{}, 1), reported: make(map[string]string)}, c, events
}

func node(name string, cidrs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

// drain returns the events so far.
func drain(r *record.FakeRecorder) (all []string) {
	for {
		select {
		case e := <-r.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// TestAssign checks which nodes get ranges, over several pages of the list, and that a second run writes nothing.
func TestAssign(t *testing.T) {
	leaving := node("leaving")
	leaving.DeletionTimestamp = &metav1.Time{}
	c, api, events := newController(t, node("a"), node("b", "10.8.0.0/24", "fd08::/64"), node("c"), leaving, node("unread", "10.8.2.0/240"))
	for run := range 2 {
		if err := c.assign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if api.writes != 2 {
			t.Errorf("%d writes after run %d, want 2", api.writes, run)
		}
	}
	taken := make(map[string]string)
	for _, name := range []string{"a", "b", "c"} {
		cidrs := api.nodes[name].Spec.PodCIDRs
		if len(cidrs) != 2 || !strings.HasSuffix(cidrs[0], "/24") || !strings.HasSuffix(cidrs[1], "/64") {
			t.Errorf("node %s has %q", name, cidrs)
		}
		for _, cidr := range cidrs {
			if other, ok := taken[cidr]; ok {
				t.Errorf("%s belongs to %s and %s", cidr, other, name)
			}
			taken[cidr] = name
		}
	}
	if got := api.nodes["leaving"].Spec.PodCIDRs; got != nil {
		t.Errorf("the node that is being deleted has %q", got)
	}
	if got := drain(events); len(got) != 1 || !strings.Contains(got[0], "PodCIDRWrong its podCIDRs cannot be read") {
		t.Errorf("events %q, want one about the node with unreadable ranges", got)
	}
}

// TestLegacyRanges checks that ranges count in every form that the API server accepts and agents read.
func TestLegacyRanges(t *testing.T) {
	c, api, events := newController(t, node("a"), node("legacy", "010.008.000.0/24", "fd08::/64"), node("mapped", "::ffff:10.8.1.0/120", "fd08:0:0:1::/64"))
	if err := c.assign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := api.nodes["a"].Spec.PodCIDRs; !slices.Equal(got, []string{"10.8.2.0/24", "fd08:0:0:2::/64"}) {
		t.Errorf("node a has %q, want ranges of no other node", got)
	}
	if got := drain(events); len(got) != 0 {
		t.Errorf("events %q", got)
	}
}

// TestFailedWrites checks that one failed write does not stop the others, and that a deleted node is not a failure.
func TestFailedWrites(t *testing.T) {
	c, api, _ := newController(t, node("a"), node("gone"), node("z"))
	api.refuse["a"], api.without = errors.New("the API server is busy"), "gone"
	err := c.assign(t.Context())
	if err == nil || !strings.Contains(err.Error(), "of node a: the API server is busy") || strings.Contains(err.Error(), "gone") {
		t.Errorf("error %v, want one about node a only", err)
	}
	if len(api.nodes["z"].Spec.PodCIDRs) != 2 {
		t.Error("node z has no ranges")
	}
	delete(api.refuse, "a")
	if err := c.assign(t.Context()); err != nil || len(api.nodes["a"].Spec.PodCIDRs) != 2 {
		t.Errorf("the next run: %v, node a has %q", err, api.nodes["a"].Spec.PodCIDRs)
	}
}

// TestExhausted checks that a node that waits for a range is reported once, and gets the range of a deleted node.
func TestExhausted(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 9 {
		nodes = append(nodes, node("n"+strconv.Itoa(i)))
	}
	c, api, events := newController(t, nodes...)
	for range 3 {
		if err := c.assign(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := drain(events); len(got) != 1 || !strings.Contains(got[0], "PodCIDRNotAvailable") || !c.waiting.Load() {
		t.Errorf("events %q, waiting %t, want one event", got, c.waiting.Load())
	}
	if n := len(api.nodes["n8"].Spec.PodCIDRs); n != 0 {
		t.Errorf("the ninth node has %d ranges of eight", n)
	}
	delete(api.nodes, "n3")
	if err := c.assign(t.Context()); err != nil || c.waiting.Load() || len(api.nodes["n8"].Spec.PodCIDRs) != 2 {
		t.Errorf("after a node was deleted: %v, waiting %t, ranges %q", err, c.waiting.Load(), api.nodes["n8"].Spec.PodCIDRs)
	}
	if got := drain(events); len(got) > 0 {
		t.Errorf("further events %q", got)
	}
}

// TestConstantChanges checks that nodes that change all the time delay no assignment for longer than MaxDebounce.
func TestConstantChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, api, _ := newController(t)
		ended := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		go func() { defer close(ended); c.run(ctx) }()
		defer func() { stop(); <-ended }()
		synctest.Wait() // the first run finds no node
		api.nodes["late"] = node("late")
		for end := time.Now().Add(c.cfg.MaxDebounce); !time.Now().After(end); time.Sleep(c.cfg.Debounce / 2) {
			c.notify()
			synctest.Wait()
		}
		if api.nodes["late"].Spec.PodCIDRs == nil {
			t.Errorf("no ranges after %s of changes", c.cfg.MaxDebounce)
		}
	})
}
