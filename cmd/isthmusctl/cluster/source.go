// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Source selects where a cluster is read from. Its fields are the values of flags.
type Source struct {
	Manifests  string // a directory
	Kubeconfig string
	// SkipBad skips documents with errors.
	SkipBad bool
	// Placeholders adds a placeholder pod for every policy that selects no pod.
	Placeholders bool
	// Services are those of the manifests that were loaded.
	Services []*model.Service

	timeout time.Duration
	// stored reads manifests as objects that an API server already stores, with looser
	// validation.
	stored bool
	// leftOut counts the errors whose documents were skipped.
	leftOut int
}

// Register registers the flags of all sources.
func (s *Source) Register(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&s.Manifests, "manifests", "m", "", "read the cluster from the manifests in this directory")
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "read the cluster from the API server that this file names")
	f.DurationVar(&s.timeout, "timeout", 30*time.Second, "how long to wait for the API server")
	s.RegisterReading(c)
}

// RegisterReading registers the flags that control how manifests are read.
func (s *Source) RegisterReading(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&s.SkipBad, "skip-bad", false, "skip documents with errors; stderr names them, and the exit status is 2")
	RegisterStored(f, &s.stored)
}

// RegisterStored registers the flag --stored.
func RegisterStored(f *pflag.FlagSet, stored *bool) {
	f.BoolVar(stored, "stored", false, "validate manifests as objects that an API server already stores, as in a dump of a live cluster")
}

// RegisterPlaceholders registers the flag that adds placeholder pods.
func (s *Source) RegisterPlaceholders(c *cobra.Command) {
	c.Flags().BoolVar(&s.Placeholders, "witnesses", false, "add a placeholder pod for every policy that selects no pod, to show its effect")
}

// Check checks the flags.
func (s *Source) Check() error {
	switch {
	case s.Manifests == "" && s.Kubeconfig == "":
		return cli.Usagef("no cluster given: give --manifests DIR or --kubeconfig FILE")
	case s.Manifests != "" && s.Kubeconfig != "":
		return cli.Usagef("--manifests and --kubeconfig: give one of them")
	case s.Kubeconfig != "" && s.Placeholders:
		return cli.Usagef("--witnesses: works with --manifests only")
	case s.Kubeconfig != "" && s.stored:
		return cli.Usagef("--stored: works with --manifests only; objects of an API server are always validated so")
	case s.timeout <= 0:
		return cli.Usagef("--timeout %s: give a duration above 0", s.timeout)
	}
	return nil
}

// Problems lists remarks about a cluster that was read. None of them prevented the rest from
// being read.
type Problems struct {
	// Bad are documents with errors. The commands skip them; an agent would keep the last
	// good state instead.
	Bad []string
	// Warnings are remarks on accepted documents, and on invalid objects of an API server.
	Warnings []string
	// Assumed describes what the command added because a running cluster would.
	Assumed []string
}

// Load reads the cluster. For a directory it adds a node and an address to pods without one,
// so that every pod takes part.
func (s *Source) Load(ctx context.Context) (*model.Snapshot, Problems, error) {
	if s.Kubeconfig != "" {
		return s.loadAPI(ctx)
	}
	o, p, err := s.ReadDir(ctx, s.Manifests)
	if err != nil {
		return nil, p, err
	}
	if s.Placeholders {
		addPlaceholders(&o)
	}
	p.Assumed = Assumptions(complete.Place(&o))
	s.Services = o.Services
	return o.Snapshot(), p, nil
}

// addPlaceholders adds a placeholder pod for every policy that selects no pod.
func addPlaceholders(o *model.Objects) {
	snapshot := o.Snapshot()
	for _, p := range complete.Unselecting(snapshot, snapshot.SortedPolicies()) {
		if pod, ns, ok := policy.PlaceholderPod(snapshot, p); ok {
			o.Pods = append(o.Pods, pod)
			o.Namespaces = append(o.Namespaces, ns)
		}
	}
}

// Assumptions describes the additions, one line each.
func Assumptions(p complete.Placed) []string {
	var said []string
	if len(p.Nodes) > 0 {
		said = append(said, fmt.Sprintf("%d nodes that no manifest describes: %s", len(p.Nodes), cli.Shorten(p.Nodes, 5)))
	}
	if p.Bound > 0 {
		said = append(said, fmt.Sprintf("nodes for %d pods that are bound to none", p.Bound))
	}
	if p.Addressed > 0 {
		said = append(said, fmt.Sprintf("addresses for %d pods that have none", p.Addressed))
	}
	return said
}

// ReadDir reads a directory without adding anything. It returns an error only if it can read
// nothing at all.
func (s *Source) ReadDir(ctx context.Context, dir string) (model.Objects, Problems, error) {
	o, warnings, errs := s.reading().Dir(ctx, dir)
	var p Problems
	for _, w := range warnings {
		p.Warnings = append(p.Warnings, w.String())
	}
	for _, e := range errs {
		if e.File == dir { // not one file: the directory, or a limit on all of them
			return o, p, fmt.Errorf("read manifests: %w", e)
		}
		p.Bad = append(p.Bad, e.Error())
	}
	if len(errs) == 0 && len(o.Namespaces)+len(o.Nodes)+len(o.Pods)+len(o.Policies)+len(o.DenyLists) == 0 {
		return o, p, fmt.Errorf("%s: no policies, pods, workloads, namespaces, nodes or deny lists in .yaml, .yml or .json files: name a directory that has some", dir)
	}
	return o, p, ctx.Err()
}

func (s *Source) reading() manifests.Reading {
	return manifests.Reading{Limits: manifests.DefaultLimits(), Stored: s.stored}
}

// loadAPI waits for the first complete state of an API server.
func (s *Source) loadAPI(ctx context.Context) (*model.Snapshot, Problems, error) {
	cfg := watch.DefaultAPIConfig(s.Kubeconfig)
	cfg.UserAgent = "isthmusctl"
	api, err := watch.NewAPIServer(cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return nil, Problems{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var snapshot *model.Snapshot
	var found []string
	refused := make(chan error, 1)
	go func() { refused <- untilRefused(ctx, api, cancel) }()
	err = api.Run(ctx, func(first *model.Snapshot) {
		if snapshot == nil {
			snapshot, found = first, api.Problems()
			cancel()
		}
	})
	cancel()
	if why := <-refused; err == nil && snapshot == nil {
		err = why
	}
	switch {
	case err != nil:
		return nil, Problems{}, fmt.Errorf("read from the API server: %w", err)
	case snapshot == nil:
		return nil, Problems{}, fmt.Errorf("read from the API server: no complete answer within %s: raise --timeout: %s",
			s.timeout, cli.Shorten(api.Problems(), 2))
	}
	return snapshot, Problems{Warnings: found}, nil
}

// untilRefused waits until the context is done, and ends it when the API server denies
// access.
func untilRefused(ctx context.Context, api *watch.APIServer, end context.CancelFunc) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
		if err := api.Refused(); err != nil {
			end()
			return err
		}
	}
}

// Open loads the cluster for commands whose answer is wrong without all documents. Documents
// with errors end the command, unless --skip-bad is set.
func (s *Source) Open(ctx context.Context, stderr io.Writer) (*model.Snapshot, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	snapshot, p, err := s.Load(ctx)
	if err != nil {
		return nil, err
	}
	return snapshot, s.Report(stderr, p)
}

// Report writes problems to stderr. Bad documents are an error unless --skip-bad is
// set.
func (s *Source) Report(stderr io.Writer, p Problems) error {
	for _, w := range p.Warnings {
		fmt.Fprintf(stderr, "isthmusctl: %s\n", w)
	}
	for _, a := range p.Assumed {
		fmt.Fprintf(stderr, "isthmusctl: assumed: %s\n", a)
	}
	if len(p.Bad) == 0 {
		return nil
	}
	if s.SkipBad {
		s.leftOut += len(p.Bad)
		for _, b := range p.Bad {
			fmt.Fprintf(stderr, "isthmusctl: skipped: %s\n", b)
		}
		return nil
	}
	more := ""
	if n := len(p.Bad) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more errors)", n)
	}
	return fmt.Errorf("%s%s: fix it, or skip it with --skip-bad; isthmusctl lint lists all", p.Bad[0], more)
}

// Complete turns an answer about a part of the manifests into an error: without the rest
// neither answer is certain.
func (s *Source) Complete(err error) error {
	if s.leftOut > 0 && (err == nil || errors.Is(err, cli.ErrNo)) {
		return fmt.Errorf("the answer covers only a part of the manifests: documents with %d errors were skipped", s.leftOut)
	}
	return err
}
