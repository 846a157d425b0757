// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/doctor"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/kube/watch"
)

// allNodes are the flags of commands that ask the agents of all nodes.
type allNodes struct {
	all       bool
	namespace string
	context   string
	as        string
	groups    []string
}

func (a *allNodes) register(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&a.all, "all-nodes", false, "ask the agents of all nodes through the API server, as kubectl exec does; needs the right to exec in their pods")
	f.StringVar(&a.namespace, "agent-namespace", agents.DefaultNamespace, "with --all-nodes: namespace of the agents; pods of others are never asked")
	f.StringVar(&a.context, "context", "", "with --all-nodes: context of the kubeconfig file")
	f.StringVar(&a.as, "as", "", "with --all-nodes: user name to impersonate")
	f.StringArrayVar(&a.groups, "as-group", nil, "with --all-nodes: group to impersonate (repeatable)")
}

// check rejects flags that count for all nodes only.
func (a *allNodes) check(c *cobra.Command) error {
	if !a.all {
		for _, name := range []string{"agent-namespace", "context", "as", "as-group"} {
			if c.Flags().Changed(name) {
				return cli.Usagef("--%s: works with --all-nodes only", name)
			}
		}
		if c.Name() != "doctor" && c.Flags().Changed("kubeconfig") {
			return cli.Usagef("--kubeconfig: works with --all-nodes only")
		}
		return nil
	}
	if c.Flags().Changed("socket") {
		return cli.Usagef("--socket: it does not work with --all-nodes")
	}
	if a.namespace == "" {
		return cli.Usagef("--agent-namespace: name the namespace of the agents, such as %s", agents.DefaultNamespace)
	}
	if a.as == "" && len(a.groups) > 0 {
		return cli.Usagef("--as-group: give --as, too")
	}
	return nil
}

// open lists the agents of a cluster. It names nodes that do not answer on stderr.
func (a *allNodes) open(ctx context.Context, stderr io.Writer, kubeconfig string, timeout time.Duration) (*agents.Cluster, []agents.Agent, error) {
	if timeout <= 0 {
		return nil, nil, cli.Usagef("--timeout %s: give a duration above 0", timeout)
	}
	cfg := watch.DefaultAPIConfig(kubeconfig)
	cfg.UserAgent, cfg.Rules, cfg.Context, cfg.Impersonate, cfg.ImpersonateGroups = "isthmusctl", true, a.context, a.as, a.groups
	c, err := agents.New(cfg, a.namespace)
	if err != nil {
		return nil, nil, err
	}
	c.Waiting = func(nodes []string) {
		text := strings.Join(nodes[:min(len(nodes), maxWaiting)], ", ")
		if more := len(nodes) - maxWaiting; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(cli.Printable(stderr), "isthmusctl: no answer yet from %s; --timeout ends the wait after %s\n", text, timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := c.List(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("find the agents: %w", err)
	}
	if len(list) == 0 {
		return nil, nil, fmt.Errorf("find the agents: the cluster has no nodes")
	}
	return c, list, nil
}

// maxWaiting bounds the names of nodes that do not answer.
const maxWaiting = 10

// run runs isthmusctl in the pods of all agents.
func (a *allNodes) run(ctx context.Context, stderr io.Writer, kubeconfig string, timeout time.Duration, args ...string) ([]agents.Result, error) {
	c, list, err := a.open(ctx, stderr, kubeconfig, timeout)
	if err != nil {
		return nil, err
	}
	return c.Run(ctx, timeout, agents.Everywhere(list, args...)), nil
}

// nodeAnswer is the answer of the agent of a node.
type nodeAnswer struct {
	Node string `json:"node"`
	OS   string `json:"os"`
	Pod  string `json:"pod,omitempty"`
	// Error says why there is no answer.
	Error string `json:"error,omitempty"`
	// Status and Findings are what isthmusctl printed on the node.
	Status   json.RawMessage `json:"status,omitempty"`
	Findings json.RawMessage `json:"findings,omitempty"`

	status *isthmusv1.GetNodeResponse
	found  []doctor.Finding
}

func newAnswer(r agents.Result) nodeAnswer {
	a := nodeAnswer{Node: r.Node, OS: string(r.OS)}
	if r.Pod != "" {
		a.Pod = r.Namespace + "/" + r.Pod
	}
	if r.Err != nil {
		a.Error = r.Err.Error()
	}
	return a
}

// statusOfAll prints the status of all nodes. It is cli.ErrNotReady unless each answers and is ready.
func (e env) statusOfAll(ctx context.Context, a *allNodes, s *shared, kubeconfig string) error {
	results, err := a.run(ctx, e.Stderr, kubeconfig, s.timeout, "status", "-o", "json")
	if err != nil {
		return err
	}
	list, ready := make([]nodeAnswer, 0, len(results)), 0
	for _, r := range results {
		n := newAnswer(r)
		if r.Err == nil {
			n.status = &isthmusv1.GetNodeResponse{}
			if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(r.Output, n.status); err != nil {
				n.status, n.Error = nil, fmt.Sprintf("read the answer of pod %s: %v", n.Pod, err)
			} else {
				n.Status = r.Output
			}
		}
		if n.status.GetReady() {
			ready++
		}
		list = append(list, n)
	}
	if s.output == "json" || s.output == "yaml" {
		err = cli.EncodeKind(e.Stdout, s.output, "NodeStatusList", map[string]any{"items": list})
	} else {
		err = cli.Plain(e.Stdout, func(out io.Writer) error { return writeAll(out, list, ready) })
	}
	if err == nil && ready < len(list) {
		return cli.ErrNotReady
	}
	return err
}

// flat returns a text of a node as one line.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }

// writeAll prints a table of nodes, then what is wrong with them.
func writeAll(out io.Writer, list []nodeAnswer, ready int) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tREADY\tOS\tVERSION\tPODS\tPROBLEMS\tDRIFT")
	var order []string // of what is wrong, with its nodes
	where := make(map[string][]string)
	wrong := func(node, what string) {
		what = flat(what)
		if where[what] == nil {
			order = append(order, what)
		}
		where[what] = append(where[what], node)
	}
	versions := make(map[string]int)
	problems, drifts, unknown := 0, 0, 0
	for _, n := range list {
		if n.status == nil {
			unknown++
			fmt.Fprintf(w, "%s\tunknown\t%s\tunknown\t-\t-\t-\n", n.Node, cmp.Or(n.OS, "unknown"))
			wrong(n.Node, "no answer: "+n.Error)
			continue
		}
		answer, system := "no", n.OS
		if n.status.GetReady() {
			answer = "yes"
		}
		if p := n.status.GetPlatform(); p != "" {
			system += " (" + flat(p) + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\n", n.Node, answer, system, flat(n.status.GetVersion()),
			n.status.GetEndpoints(), len(n.status.GetProblems()), len(n.status.GetRepairs()))
		versions[flat(n.status.GetVersion())]++
		problems, drifts = problems+len(n.status.GetProblems()), drifts+len(n.status.GetRepairs())
		for _, p := range n.status.GetProblems() {
			wrong(n.Node, "problem: "+p)
		}
		for _, r := range n.status.GetRepairs() {
			wrong(n.Node, "drift, repaired: "+r)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, what := range order {
		fmt.Fprintf(out, "%s: %s\n", few(where[what], 5), what)
	}
	if len(versions) > 1 {
		var texts []string
		for _, v := range slices.Sorted(maps.Keys(versions)) {
			texts = append(texts, fmt.Sprintf("%s (%d)", v, versions[v]))
		}
		fmt.Fprintf(out, "agents have different versions: %s\n", strings.Join(texts, ", "))
	}
	_, err := fmt.Fprintf(out, "status: nodes=%d ready=%d unknown=%d problems=%d drift=%d\n", len(list), ready, unknown, problems, drifts)
	return err
}

// doctorOfAll prints what doctor finds on all nodes. It is cli.ErrNo if there is an error, or a node without an answer.
func (e env) doctorOfAll(ctx context.Context, a *allNodes, timeout time.Duration, kubeconfig, output string) error {
	results, err := a.run(ctx, e.Stderr, kubeconfig, timeout, "doctor", "-o", "json")
	if err != nil {
		return err
	}
	list := make([]nodeAnswer, 0, len(results))
	for _, r := range results {
		n := newAnswer(r)
		if r.Err == nil {
			var report struct{ Findings json.RawMessage }
			err := json.Unmarshal(r.Output, &report)
			if err == nil {
				err = json.Unmarshal(report.Findings, &n.found)
			}
			if err != nil {
				n.Error = fmt.Sprintf("read the answer of pod %s: %v", n.Pod, err)
			} else {
				n.Findings = report.Findings
			}
		}
		list = append(list, n)
	}
	if output != "text" {
		err = cli.EncodeKind(e.Stdout, output, "NodeFindingsList", map[string]any{"items": list})
	} else {
		err = cli.Plain(e.Stdout, func(out io.Writer) error { return writeAllFindings(out, list) })
	}
	if err == nil && slices.ContainsFunc(list, func(n nodeAnswer) bool { return n.Error != "" || doctor.Worst(n.found) == doctor.Bad }) {
		err = cli.ErrNo
	}
	return err
}

// writeAllFindings prints a table of nodes, then each finding with its nodes.
func writeAllFindings(out io.Writer, list []nodeAnswer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tOS\tOK\tWARNINGS\tERRORS\tUNKNOWN")
	where := make(map[doctor.Finding][]string)
	var order []doctor.Finding
	var silent []string
	for _, n := range list {
		if n.Error != "" {
			fmt.Fprintf(w, "%s\t%s\t-\t-\t-\t-\n", n.Node, cmp.Or(n.OS, "unknown"))
			silent = append(silent, n.Node+": no answer: "+flat(n.Error))
			continue
		}
		counts := make(map[doctor.Severity]int)
		for _, f := range n.found {
			counts[f.Severity]++
			if f.Severity == doctor.Good {
				continue
			}
			if where[f] == nil {
				order = append(order, f)
			}
			where[f] = append(where[f], n.Node)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\n", n.Node, n.OS, counts[doctor.Good], counts[doctor.Warning], counts[doctor.Bad], counts[doctor.Unknown])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, line := range silent {
		fmt.Fprintln(out, line)
	}
	for _, f := range order {
		if _, err := fmt.Fprintf(out, "%-8s %s: %s\n         on:  %s\n         why: %s\n         do:  %s\n", f.Severity, flat(f.Check), flat(f.What), few(where[f], 5), flat(f.Why), flat(f.Do)); err != nil {
			return err
		}
	}
	return nil
}
