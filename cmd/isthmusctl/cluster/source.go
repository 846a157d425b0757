// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// source selects where a cluster is read from.
type source struct {
	manifests  string
	kubeconfig string
	timeout    time.Duration
	skipBad    bool
	// stored reads manifests as objects that an API server already stores, with looser
	// validation.
	stored bool
	// placeholders adds a placeholder pod for every policy that selects no pod.
	placeholders bool
	// leftOut counts the errors whose documents were skipped.
	leftOut int
	// services are those of the manifests that were loaded.
	services []*model.Service
}

func (s *source) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&s.manifests, "manifests", "m", "", "read the cluster from the manifests in this directory")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "read the cluster from the API server that this file names")
	f.DurationVar(&s.timeout, "timeout", 30*time.Second, "how long to wait for the API server")
	s.registerReading(c)
}

// registerReading registers the flags that control how manifests are read.
func (s *source) registerReading(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&s.skipBad, "skip-bad", false, "skip documents with errors; stderr names them, and the exit status is 2")
	registerStored(f, &s.stored)
}

func registerStored(f *pflag.FlagSet, stored *bool) {
	f.BoolVar(stored, "stored", false, "validate manifests as objects that an API server already stores, as in a dump of a live cluster")
}

func (s *source) registerPlaceholders(c *cobra.Command) {
	c.Flags().BoolVar(&s.placeholders, "witnesses", false, "add a placeholder pod for every policy that selects no pod, to show its effect")
}

func (s *source) check() error {
	switch {
	case s.manifests == "" && s.kubeconfig == "":
		return usageError{errors.New("no cluster given: give --manifests DIR or --kubeconfig FILE")}
	case s.manifests != "" && s.kubeconfig != "":
		return usageError{errors.New("--manifests and --kubeconfig: give one of them")}
	case s.kubeconfig != "" && s.placeholders:
		return usageError{errors.New("--witnesses: works with --manifests only")}
	case s.kubeconfig != "" && s.stored:
		return usageError{errors.New("--stored: works with --manifests only; objects of an API server are always validated so")}
	case s.timeout <= 0:
		return usageError{fmt.Errorf("--timeout %s: give a duration above 0", s.timeout)}
	}
	return nil
}

// problems lists remarks about a cluster that was read. None of them prevented the rest from
// being read.
type problems struct {
	// bad are documents with errors. The commands skip them; an agent would keep the last
	// good state instead.
	bad []string
	// warnings are remarks on accepted documents, and on invalid objects of an API server.
	warnings []string
	// assumed describes what the command added because a running cluster would.
	assumed []string
}

// load reads the cluster. For a directory it adds a node and an address to pods without one,
// so that every pod takes part.
func (s *source) load(ctx context.Context) (*model.Snapshot, problems, error) {
	if s.kubeconfig != "" {
		return s.loadAPI(ctx)
	}
	o, p, err := s.readDir(ctx, s.manifests)
	if err != nil {
		return nil, p, err
	}
	if s.placeholders {
		addPlaceholders(&o)
	}
	p.assumed = assumptions(complete.Place(&o))
	s.services = o.Services
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

// assumptions describes the additions, one line each.
func assumptions(p complete.Placed) []string {
	var said []string
	if len(p.Nodes) > 0 {
		said = append(said, fmt.Sprintf("%d nodes that no manifest describes: %s", len(p.Nodes), shorten(p.Nodes, 5)))
	}
	if p.Bound > 0 {
		said = append(said, fmt.Sprintf("nodes for %d pods that are bound to none", p.Bound))
	}
	if p.Addressed > 0 {
		said = append(said, fmt.Sprintf("addresses for %d pods that have none", p.Addressed))
	}
	return said
}

// readDir reads a directory without adding anything. It returns an error only if it can read
// nothing at all.
func (s *source) readDir(ctx context.Context, dir string) (model.Objects, problems, error) {
	o, warnings, errs := s.reading().Dir(ctx, dir)
	var p problems
	for _, w := range warnings {
		p.warnings = append(p.warnings, w.String())
	}
	for _, e := range errs {
		if e.File == dir { // not one file: the directory, or a limit on all of them
			return o, p, fmt.Errorf("read manifests: %w", e)
		}
		p.bad = append(p.bad, e.Error())
	}
	if len(errs) == 0 && len(o.Namespaces)+len(o.Nodes)+len(o.Pods)+len(o.Policies)+len(o.DenyLists) == 0 {
		return o, p, fmt.Errorf("%s: no policies, pods, workloads, namespaces, nodes or deny lists in .yaml, .yml or .json files: name a directory that has some", dir)
	}
	return o, p, ctx.Err()
}

func (s *source) reading() manifests.Reading {
	return manifests.Reading{Limits: manifests.DefaultLimits(), Stored: s.stored}
}

// loadAPI waits for the first complete state of an API server.
func (s *source) loadAPI(ctx context.Context) (*model.Snapshot, problems, error) {
	cfg := watch.DefaultAPIConfig(s.kubeconfig)
	cfg.UserAgent = "isthmusctl"
	api, err := watch.NewAPIServer(cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return nil, problems{}, err
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
		return nil, problems{}, fmt.Errorf("read from the API server: %w", err)
	case snapshot == nil:
		return nil, problems{}, fmt.Errorf("read from the API server: no complete answer within %s: raise --timeout: %s",
			s.timeout, shorten(api.Problems(), 2))
	}
	return snapshot, problems{warnings: found}, nil
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

// open loads the cluster for commands whose answer is wrong without all documents. Documents
// with errors end the command, unless --skip-bad is set.
func (e env) open(ctx context.Context, s *source) (*model.Snapshot, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	snapshot, p, err := s.load(ctx)
	if err != nil {
		return nil, err
	}
	return snapshot, e.reportProblems(s, p)
}

// reportProblems writes problems to stderr. Bad documents are an error unless --skip-bad is
// set.
func (e env) reportProblems(s *source, p problems) error {
	for _, w := range p.warnings {
		fmt.Fprintf(e.stderr, "isthmusctl: %s\n", w)
	}
	for _, a := range p.assumed {
		fmt.Fprintf(e.stderr, "isthmusctl: assumed: %s\n", a)
	}
	if len(p.bad) == 0 {
		return nil
	}
	if s.skipBad {
		s.leftOut += len(p.bad)
		for _, b := range p.bad {
			fmt.Fprintf(e.stderr, "isthmusctl: skipped: %s\n", b)
		}
		return nil
	}
	more := ""
	if n := len(p.bad) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more errors)", n)
	}
	return fmt.Errorf("%s%s: fix it, or skip it with --skip-bad; isthmusctl lint lists all", p.bad[0], more)
}

// complete turns an answer about a part of the manifests into an error: without the rest
// neither answer is certain.
func (s *source) complete(err error) error {
	if s.leftOut > 0 && (err == nil || errors.Is(err, errNo)) {
		return fmt.Errorf("the answer covers only a part of the manifests: documents with %d errors were skipped", s.leftOut)
	}
	return err
}
