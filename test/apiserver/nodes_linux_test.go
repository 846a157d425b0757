// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/wine"
)

// nodes are two Linux nodes in namespaces with their agents, which follow a real API server with the role of the
// release. The API server is outside of the nodes.
type nodes struct {
	t          *testing.T
	server     *Server
	cluster    *cluster.Cluster
	kubeconfig string // the agents'
	pods       map[string]*cluster.Pod

	mu sync.Mutex
	// written are the objects that policies read, as the API server stores them.
	written map[string]string
	markers int
}

// newNodes starts nodes until the test ends. They are on one segment, or each on a separate segment, which only
// tunnels connect.
func newNodes(t *testing.T, segments int) *nodes {
	t.Helper()
	return newNodesOf(t, cluster.Config{Linux: 2, Segments: segments})
}

// newNodesOf is newNodes for other clusters.
func newNodesOf(t *testing.T, cfg cluster.Config) *nodes {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root, kube-apiserver and no -short: make test-api runs it")
	}
	ctx := context.Background()
	dir, err := os.MkdirTemp("/run", "isthmus-api-") // short, for the sockets
	must(t, err)
	n := &nodes{t: t, pods: make(map[string]*cluster.Pod), written: make(map[string]string)}
	cfg.Dir, cfg.Bin = dir, commands(t)
	if cfg.Wine {
		must(t, wine.Build(ctx, "../..", cfg.Bin))
	}
	n.cluster, err = cluster.New(cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := n.cluster.DetachAll(ctx); err != nil {
			t.Error(err)
		}
		if err := n.cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	outside, addresses := n.cluster.Outside()
	n.server, err = Start(ctx, Config{NS: outside, Address: addresses[0]}, os.Stderr)
	must(t, err)
	t.Cleanup(func() {
		if err := n.server.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, n.server.ApplyFiles(ctx, "../../deploy/rbac/agent.yaml"))
	n.kubeconfig = n.member("isthmus-agent", "isthmus-agent", "isthmus-agent-announce", "isthmus-agent-report")
	n.cluster.UseAPI(n.kubeconfig, n.apply)
	must(t, n.cluster.Start(ctx))
	return n
}

// member makes a service account with cluster roles and returns its kubeconfig
// file.
func (n *nodes) member(name string, roles ...string) string {
	n.t.Helper()
	path, err := n.server.ServiceAccount(context.Background(), "isthmus-system", name)
	must(n.t, err)
	for _, role := range roles {
		must(n.t, n.server.Apply(context.Background(), fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "test:%[1]s-%[2]s"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "%[2]s"}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: isthmus-system}]`, name, role)))
	}
	return path
}

// policed are policies, and the kinds that policies select.
var policed = []string{"Namespace", "Node", "Pod", "NetworkPolicy", "ClusterNetworkPolicy"}

// apply applies objects, and records those that policies read.
func (n *nodes) apply(manifests string) error {
	return n.change(manifests, n.server.Apply, func(key, text string) { n.written[key] = text })
}

// remove deletes objects, and removes them from the record.
func (n *nodes) remove(manifests string) error {
	return n.change(manifests, n.server.Delete, func(key, _ string) { delete(n.written, key) })
}

func (n *nodes) change(manifests string, do func(context.Context, string) error, note func(key, text string)) error {
	all, err := decode([]byte(manifests))
	if err != nil {
		return err
	}
	if err := do(context.Background(), manifests); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, u := range all {
		if !slices.Contains(policed, u.GetKind()) {
			continue
		}
		text, err := json.Marshal(u.Object)
		if err != nil {
			return err
		}
		note(u.GetKind()+" "+u.GetNamespace()+"/"+u.GetName(), string(text))
	}
	return nil
}

// reference returns the reference evaluator of the last written objects.
func (n *nodes) reference() *policy.Evaluator {
	n.t.Helper()
	n.mu.Lock()
	text := strings.Join(slices.Collect(maps.Values(n.written)), "\n---\n")
	n.mu.Unlock()
	objects, _, errs := manifests.Parse("written.yaml", []byte(text), manifests.DefaultLimits())
	if len(errs) > 0 {
		n.t.Fatal(errs[0])
	}
	return policy.NewEvaluator(objects.Snapshot())
}

// settle waits until the agents enforce the written objects: first for the number of policies, then for another
// policy, which arrives after all other changes of its kind.
func (n *nodes) settle() {
	n.t.Helper()
	n.counted()
	n.markers++
	must(n.t, n.apply(fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: marker-%d, namespace: default}, "+
		"spec: {podSelector: {matchLabels: {nobody: has}}}}", n.markers)))
	n.counted()
	time.Sleep(200 * time.Millisecond) // agents wait shortly for further changes
}

// counted waits until every agent knows all written policies.
func (n *nodes) counted() {
	n.t.Helper()
	n.mu.Lock()
	var want int32
	for key := range n.written {
		if strings.Contains(key, "NetworkPolicy ") {
			want++
		}
	}
	n.mu.Unlock()
	for _, node := range n.cluster.Nodes {
		for deadline := time.Now().Add(waiting); ; time.Sleep(10 * time.Millisecond) {
			s, err := node.Status(context.Background())
			if err == nil && s.Ready && s.Policies == want {
				break
			}
			if time.Now().After(deadline) {
				n.t.Fatalf("the agent of %s has %d policies, want %d (%v, %q)", node.Name, s.GetPolicies(), want, err, s.GetProblems())
			}
		}
	}
}

// place writes a pod of a node that is not attached yet.
func (n *nodes) place(node int, namespace, name string, labels map[string]string) *model.Pod {
	n.t.Helper()
	pod := &model.Pod{PodID: model.PodID{Namespace: namespace, Name: name}, Node: n.cluster.Nodes[node].Name, Labels: model.MakeLabels(labels)}
	must(n.t, n.cluster.Manifests.WritePod(pod))
	return pod
}

// attach runs CNI ADD for a pod that was placed.
func (n *nodes) attach(pod *model.Pod) *cluster.Pod {
	n.t.Helper()
	attached, _, err := n.cluster.Attach(context.Background(), pod)
	must(n.t, err)
	n.pods[pod.Name] = attached
	return attached
}

// restartAgents ends every agent by SIGKILL, and starts it again.
func (n *nodes) restartAgents() {
	n.t.Helper()
	for _, node := range n.cluster.Nodes {
		must(n.t, node.Restart(context.Background(), 9))
	}
}

// logs reports whether the agent of a node has written all texts in one line.
func (n *nodes) logs(node int, texts ...string) bool {
	n.t.Helper()
	text, err := os.ReadFile(n.cluster.Nodes[node].Log())
	must(n.t, err)
	for line := range strings.Lines(string(text)) {
		if !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(line, s) }) {
			return true
		}
	}
	return false
}

// reports waits until the agent of a node reports a problem that contains all texts.
func (n *nodes) reports(node int, texts ...string) {
	n.t.Helper()
	var problems []string
	for deadline := time.Now().Add(waiting); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		s, err := n.cluster.Nodes[node].Status(context.Background())
		if problems = s.GetProblems(); err != nil {
			problems = []string{err.Error()} // the agent may be starting
		}
		for _, p := range problems {
			if !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(p, s) }) {
				return
			}
		}
	}
	n.t.Fatalf("no problem with %q among %q", texts, problems)
}

// familyOf returns the address of a list in one family.
func familyOf(all []netip.Addr, v6 bool) netip.Addr {
	for _, a := range all {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

// logOf returns the path of the log of a program that a test starts for a node.
func (n *nodes) logOf(node int, program string) string {
	return filepath.Join(n.cluster.Nodes[node].Dir, program+".log")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
