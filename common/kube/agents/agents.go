// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/isthmus-net/isthmus/common/kube/podexec"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	// Selector selects the pods of agents, as the chart labels them.
	Selector = "app.kubernetes.io/name=isthmus,app.kubernetes.io/component in (agent-linux,agent-windows)"
	// DefaultNamespace is the namespace of agents if users name none.
	DefaultNamespace = "isthmus-system"
	// container is the container of the agent.
	container = "agent"
	// concurrent bounds the commands that run at a time.
	concurrent = 16
	// pageSize is the number of objects that a list requests at a time.
	pageSize = 500
)

// Agent is the agent of a node, or a node without one.
type Agent struct {
	Node string
	OS   model.OS
	// Namespace and Pod are those of the pod that runs it.
	Namespace, Pod string
	// Image is that of the agent's container.
	Image string
	// Missing says why there is no agent to ask; empty if there is one.
	Missing string
}

// Cluster runs commands in a cluster.
type Cluster struct {
	// Waiting, if set, receives the names of nodes that have not answered a call of Run for two seconds, once per call.
	Waiting func(nodes []string)

	namespace string
	client    rest.Interface
	codec     runtime.ParameterCodec
	exec      *podexec.Executor
}

// New reads credentials as kubectl does. It does not connect. Agents are pods of the namespace only: users of any other one
// could label a pod as an agent, and so answer for a node and read what commands are about.
func New(cfg watch.APIConfig, namespace string) (*Cluster, error) {
	config, err := watch.RESTConfig(cfg)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config.UserAgent, config.QPS = cfg.UserAgent, -1
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare client: %w", err)
	}
	codec := runtime.NewParameterCodec(scheme)
	return &Cluster{namespace: namespace, client: client, codec: codec, exec: podexec.New(config, client, codec)}, nil
}

// List returns the agents of all nodes, by the name of the node. It is an error if only other namespaces have pods of agents.
func (c *Cluster) List(ctx context.Context) ([]Agent, error) {
	var nodes []corev1.Node
	err := list(ctx, c, "nodes", "", "", func(l *corev1.NodeList) { nodes = append(nodes, l.Items...) })
	if err != nil {
		return nil, err
	}
	pods := make(map[string][]corev1.Pod)
	err = list(ctx, c, "pods", c.namespace, Selector, func(l *corev1.PodList) {
		for _, p := range l.Items {
			pods[p.Spec.NodeName] = append(pods[p.Spec.NodeName], p)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", c.namespace, err)
	}
	if len(pods) == 0 {
		if err := c.elsewhere(ctx); err != nil {
			return nil, err
		}
	}
	all := make([]Agent, 0, len(nodes))
	for i := range nodes {
		all = append(all, agentOf(&nodes[i], pods[nodes[i].Name]))
	}
	slices.SortFunc(all, func(a, b Agent) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}

// elsewhere returns an error that names the other namespaces with pods like those of agents, nil if there are none or the
// user may not list them.
func (c *Cluster) elsewhere(ctx context.Context) error {
	var found []string
	err := list(ctx, c, "pods", "", Selector, func(l *corev1.PodList) {
		for _, p := range l.Items {
			if !slices.Contains(found, p.Namespace) {
				found = append(found, p.Namespace)
			}
		}
	})
	if err != nil || len(found) == 0 {
		return nil
	}
	slices.Sort(found)
	return fmt.Errorf("namespace %s has no pod of an agent, but pods with such labels are in %s: give --agent-namespace with the one "+
		"where Isthmus is installed", c.namespace, strings.Join(found[:min(len(found), 5)], ", "))
}

// listOf is a pointer to a list of objects.
type listOf[T any] interface {
	*T
	runtime.Object
	metav1.ListInterface
}

// list reads all objects of a kind, page by page; those of one namespace unless it is empty.
func list[T any, L listOf[T]](ctx context.Context, c *Cluster, resource, namespace, selector string, page func(L)) error {
	options := metav1.ListOptions{Limit: pageSize, LabelSelector: selector}
	for {
		l := L(new(T))
		if err := c.client.Get().Namespace(namespace).Resource(resource).VersionedParams(&options, c.codec).Do(ctx).Into(l); err != nil {
			return fmt.Errorf("list %s: %w", resource, watch.Described(err))
		}
		page(l)
		if options.Continue = l.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// agentOf returns the agent of a node.
func agentOf(n *corev1.Node, pods []corev1.Pod) Agent {
	a := Agent{Node: n.Name, OS: model.OS(n.Status.NodeInfo.OperatingSystem)}
	if a.OS == "" {
		a.OS = model.OS(n.Labels[corev1.LabelOSStable])
	}
	if len(pods) == 0 {
		a.Missing = "no pod of the agent is on this node: check the DaemonSet, its node selector and the taints of the node"
		return a
	}
	// After an upgrade the earlier pod may still end.
	slices.SortFunc(pods, func(x, y corev1.Pod) int { return y.CreationTimestamp.Compare(x.CreationTimestamp.Time) })
	p := &pods[0]
	a.Namespace, a.Pod = p.Namespace, p.Name
	for _, c := range p.Spec.Containers {
		if c.Name == container {
			a.Image = c.Image
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name != container {
			continue
		}
		switch {
		case s.State.Running != nil:
			return a
		case s.State.Waiting != nil:
			a.Missing = fmt.Sprintf("pod %s/%s: container %s waits: %s", p.Namespace, p.Name, container, s.State.Waiting.Reason)
		case s.State.Terminated != nil:
			a.Missing = fmt.Sprintf("pod %s/%s: container %s ended: %s", p.Namespace, p.Name, container, s.State.Terminated.Reason)
		}
	}
	if a.Missing == "" {
		a.Missing = fmt.Sprintf("pod %s/%s: container %s does not run: the pod is %s", p.Namespace, p.Name, container, p.Status.Phase)
	}
	a.Missing += ": look at kubectl describe and logs of the pod"
	return a
}

// Result is what a command printed, or why it did not run.
type Result struct {
	Agent
	Output []byte
	// Status is the exit status.
	Status int
	Err    error
}

// Call is a command of an agent: the arguments of isthmusctl.
type Call struct {
	Agent
	Args []string
}

// Everywhere returns the same call for several agents.
func Everywhere(all []Agent, args ...string) []Call {
	calls := make([]Call, 0, len(all))
	for _, a := range all {
		calls = append(calls, Call{a, args})
	}
	return calls
}

// patience is how long Run waits before it names the nodes that do not answer.
const patience = 2 * time.Second

// Run makes calls in the pods of agents, several at a time, and returns the results in the same order. timeout bounds
// each of them.
func (c *Cluster) Run(ctx context.Context, timeout time.Duration, all []Call) []Result {
	results := make([]Result, len(all))
	tokens := make(chan struct{}, concurrent)
	var running sync.WaitGroup
	var mu sync.Mutex
	left := make(map[int]string) // nodes without an answer
	for i, a := range all {
		if a.Missing == "" {
			left[i] = a.Node
		}
	}
	slow := time.AfterFunc(patience, func() {
		mu.Lock()
		defer mu.Unlock()
		if len(left) > 0 && c.Waiting != nil {
			c.Waiting(slices.Compact(slices.Sorted(maps.Values(left))))
		}
	})
	defer slow.Stop()
	for i, a := range all {
		results[i].Agent = a.Agent
		if a.Missing != "" {
			results[i].Err = errors.New(a.Missing)
			continue
		}
		tokens <- struct{}{}
		running.Go(func() {
			defer func() { <-tokens }()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			results[i].Output, results[i].Status, results[i].Err = c.exec.Run(ctx,
				podexec.In{Namespace: a.Namespace, Pod: a.Pod, Container: container}, command(a.OS, a.Args))
			mu.Lock()
			defer mu.Unlock()
			delete(left, i)
		})
	}
	running.Wait()
	return results
}

// command returns the command line of isthmusctl in the pod of an agent. The image has no shell on Linux. A
// HostProcess container of Windows has that of the host, which knows where the image is.
func command(os model.OS, args []string) []string {
	if os == model.Windows {
		return append([]string{"cmd", "/c", `%CONTAINER_SANDBOX_MOUNT_POINT%\isthmusctl.exe`}, args...)
	}
	return append([]string{"/isthmusctl"}, args...)
}
