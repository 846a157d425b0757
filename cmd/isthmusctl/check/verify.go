// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

const verifyHelp = `Compare every representation of the policies of a cluster: the reference
evaluator, the compiled tables, the entries of the BPF maps that hold them, and
the HNS ACLs. ACLs are compared for every version of HNS, and for every possible
meaning of what HNS leaves undocumented.

Documents with errors are skipped, and the exit status is then 2. If a directory
has no pods for a policy, the command adds placeholder pods. Every pod counts as
an endpoint of its node, on every operating system. The comparison is complete,
without sampling: every endpoint, both directions, and every class of addresses
and ports that any representation distinguishes. The command prints each cell with
different verdicts. It counts a cell as over-blocked if a node denies and reports
it because it cannot enforce the policy exactly.

With --live the command compares the data path of this node itself with the
policies in force: it asks the agent, as isthmusctl dump does, and reads no
manifests. It names what the audit of the agent finds different, too.

Exit status: 0 if nothing differs, 1 if something does, 2 if the command line or
a manifest is invalid, the directory is empty, or the agent does not answer.`

func (e env) verifyCommand(live Live) *cobra.Command {
	s := &cluster.Source{}
	var output, agent string
	var onNode bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "Prove that both data paths enforce the policies exactly",
		Long:  verifyHelp,
		Example: `  isthmusctl verify -m deploy/examples/hospital
  isthmusctl verify --live`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := cli.CheckOutput(output, verifyForms...); err != nil {
				return err
			}
			if c.Flags().Changed("socket") && !onNode {
				return cli.Usagef("--socket is for --live")
			}
			if onNode {
				return verifyLive(c, s, output, agent, live)
			}
			if err := s.Check(); err != nil {
				return err
			}
			snapshot, problems, err := e.loadForVerify(c.Context(), s)
			if err == nil {
				err = e.verify(c.Context(), snapshot, s.Places, problems, output)
			}
			if errors.Is(err, cli.ErrNo) {
				return err // skipped documents do not change a difference
			}
			return s.Complete(err)
		}),
	}
	s.Register(c)
	s.RegisterAllowEmpty(c)
	cli.RegisterOutput(c, &output, verifyForms...)
	c.Flags().BoolVar(&onNode, "live", false, "compare the data path of this node, as its agent reads it")
	c.Flags().StringVar(&agent, "socket", socket.Default, "with --live: the agent's socket")
	return c
}

// verifyLive compares the data path of this node. Flags about manifests do not go with it.
func verifyLive(c *cobra.Command, s *cluster.Source, output, agent string, live Live) error {
	if len(s.Manifests) > 0 || s.Kubeconfig != "" || s.Context != "" {
		return cli.Usagef("--live: the agent of this node gives the policies: leave out --manifests, --kubeconfig and --context")
	}
	if output != "text" {
		return cli.Usagef("--live: the answer is text: leave out --output %s", output)
	}
	timeout, err := c.Flags().GetDuration("timeout")
	if err != nil {
		return err
	}
	return live(c.Context(), agent, timeout)
}

// loadForVerify reads a cluster. It always skips documents with errors: the result for the
// rest is valid without them. It adds placeholder pods for policies of a directory that has
// no pods for them.
func (e env) loadForVerify(ctx context.Context, s *cluster.Source) (*model.Snapshot, cluster.Problems, error) {
	s.SkipBad = true
	if s.Live() {
		snapshot, p, err := s.Load(ctx)
		if err != nil {
			return nil, p, err
		}
		return snapshot, p, s.Report(e.Stderr, p)
	}
	o, p, err := s.Read(ctx, s.Manifests...)
	if err != nil {
		return nil, p, err
	}
	s.Places = o.Places
	if n := complete.AddPlaceholders(&o); n > 0 {
		p.Assumed = append(p.Assumed, fmt.Sprintf("%d pods that policies name and no manifest describes", n))
	}
	p.Assumed = append(p.Assumed, cluster.Assumptions(complete.Place(&o))...)
	return o.Snapshot(), p, s.Report(e.Stderr, p)
}

// verified holds the results of one node, or of all.
type verified struct {
	cells.Result
	// inexact is what cannot be compiled exactly, by node.
	inexact []notExact
}

// verify compares all nodes of a cluster. It compiles and compares each node and keeps only
// the result.
func (e env) verify(ctx context.Context, s *model.Snapshot, places map[string]model.Place, problems cluster.Problems, output string) error {
	endpoints := engine.Endpoints(s)
	nodes := slices.Sorted(maps.Keys(endpoints))
	reference := cells.NewReference(s)
	progress := &verifyProgress{out: e.Stderr, nodes: len(nodes), said: time.Now(), working: make(map[string][2]int)}
	var all verified
	err := cli.InOrder(ctx, len(nodes), func(i int) (verified, error) {
		name := nodes[i]
		v, err := verifyNode(ctx, s, name, endpoints[name], reference, len(nodes), func(done, total int) { progress.at(name, done, total) })
		progress.finish(name, v.Cells)
		return v, err
	}, func(_ int, v verified) error {
		all.Add(v.Result)
		all.inexact = append(all.inexact, v.inexact...)
		return nil
	})
	if err != nil {
		return err
	}
	r := all.report(s, places)
	r.skip(problems)
	return e.writeVerified(r, output)
}

func verifyNode(ctx context.Context, s *model.Snapshot, name string, endpoints map[model.EndpointID]compile.Endpoint, reference *cells.Reference,
	nodes int, progress func(done, total int)) (verified, error) {
	var v verified
	state, unsupported := compile.Once(compile.Input{Snapshot: s, Node: name, Endpoints: endpoints})
	for _, u := range unsupported {
		v.inexact = append(v.inexact, notExact{fmt.Sprintf("node %q: %s", name, u), u.Policy.String()})
	}
	node, err := encode(s, state, unsupported)
	if err != nil {
		return v, err
	}
	node.Reference, node.Progress = reference, progress
	if nodes > 1 {
		node.Workers = 1 // several nodes are compared at a time
	}
	v.Result, err = cells.Compare(ctx, node)
	return v, err
}

// verifyProgress reports how many nodes are done, and how many endpoints of the nodes that
// are in progress.
type verifyProgress struct {
	out   io.Writer
	nodes int

	mu      sync.Mutex
	said    time.Time
	done    int
	cells   int
	working map[string][2]int // endpoints that are done, and all
}

func (p *verifyProgress) at(node string, done, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.working[node] = [2]int{done, total}
	p.say()
}

func (p *verifyProgress) finish(node string, cells int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.working, node)
	p.done++
	p.cells += cells
	p.say()
}

func (p *verifyProgress) say() {
	if time.Since(p.said) < cli.ProgressEvery {
		return
	}
	p.said = time.Now()
	text := fmt.Sprintf("verify: %d of %d nodes, %d cells", p.done, p.nodes, p.cells)
	for _, name := range slices.Sorted(maps.Keys(p.working)) {
		text += fmt.Sprintf("; node %q: %d of %d endpoints", name, p.working[name][0], p.working[name][1])
	}
	fmt.Fprintln(p.out, text)
}
