// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cells"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/engine"
	"github.com/isthmus-net/isthmus/common/model"
)

const verifyHelp = `Compare everything that says what the pods of a cluster may do: the reference
evaluator, the compiled tables, the entries of the BPF maps that hold them, and
the HNS ACLs for every version of HNS under every reading of what HNS leaves
undocumented.

Documents with errors are left out. For policies in a directory that has no pods
for them, pods are assumed. Every pod is taken as an endpoint of its node, whatever the node's system is. No
sample is taken: every endpoint is compared in both directions with every class
of addresses and of ports that any of the sides can tell apart. Each cell that is
not decided alike is printed with what each side says. What is denied because it
cannot be enforced exactly, and is reported, is counted as over-blocked.

Exit status: 0 if nothing differs, 1 if something does, 2 if the command line or
a manifest is not right.`

func (e env) verifyCommand() *cobra.Command {
	s := &source{}
	c := &cobra.Command{
		Use:   "verify",
		Short: "Prove that both data paths enforce what the policies say",
		Long:  verifyHelp,
		Args:  noArgs,
		RunE: answering(func(c *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return err
			}
			snapshot, err := e.loadForVerify(c.Context(), s)
			if err != nil {
				return err
			}
			return e.verify(c.Context(), snapshot)
		}),
	}
	s.register(c)
	return c
}

// loadForVerify reads a cluster. Documents with errors are always left out: an
// API server would not have taken them. Policies in a directory get pods, where
// it has none for them.
func (e env) loadForVerify(ctx context.Context, s *source) (*model.Snapshot, error) {
	if s.kubeconfig != "" {
		snapshot, p, err := s.load(ctx)
		if err != nil {
			return nil, err
		}
		return snapshot, e.tell(p, true)
	}
	o, p, err := readDir(ctx, s.manifests)
	if err != nil {
		return nil, err
	}
	if n := witnesses(&o); n > 0 {
		p.assumed = append(p.assumed, fmt.Sprintf("%d pods that policies speak of and no manifest describes", n))
	}
	p.assumed = append(p.assumed, place(&o)...)
	return o.Snapshot(), e.tell(p, true)
}

// verify compares all nodes of a cluster, one after the other.
func (e env) verify(ctx context.Context, s *model.Snapshot) error {
	cluster := engine.Compile(s, nil)
	var all cells.Result
	said := time.Now()
	for i, name := range slices.Sorted(maps.Keys(cluster.States)) {
		if time.Since(said) > progressEvery {
			said = time.Now()
			fmt.Fprintf(e.stderr, "verify: %d of %d nodes, %d cells\n", i, len(cluster.States), all.Cells)
		}
		node, err := cells.Encode(s, cluster.States[name], cluster.Unsupported[name])
		if err != nil {
			return err
		}
		result, err := cells.Compare(ctx, node)
		if err != nil {
			return err
		}
		all.Add(result)
	}
	return e.writeVerified(s, cluster, all)
}

func (e env) writeVerified(s *model.Snapshot, cluster *engine.Cluster, r cells.Result) error {
	for _, node := range slices.Sorted(maps.Keys(cluster.Unsupported)) {
		for _, u := range cluster.Unsupported[node] {
			fmt.Fprintf(e.stdout, "not exact: node %q: %s\n", node, u)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(e.stdout, "wrong: %s\n", p)
	}
	for _, d := range r.Differences {
		fmt.Fprintf(e.stdout, "differs: %s\n", d)
	}
	if more := r.Differ - len(r.Differences); more > 0 {
		fmt.Fprintf(e.stdout, "differs: %d more cells\n", more)
	}
	if r.OverBlocked > 0 {
		fmt.Fprintf(e.stdout, "over-blocked: %d cells, as reported\n", r.OverBlocked)
	}
	_, err := fmt.Fprintf(e.stdout, "verify: policies=%d tables=%d cells=%d differ=%d\n", s.Policies.Len(), r.Tables, r.Cells, r.Differ+len(r.Problems))
	if err == nil && r.Differ+len(r.Problems) > 0 {
		return errNo
	}
	return err
}
