// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/connectivity/probe"
)

// Config configures a test.
type Config struct {
	// Namespace is the name of the namespace to make; it must be unique.
	Namespace string
	Nodes     []Node
	// Keep leaves the namespace.
	Keep bool
	// Start bounds the time until pods run, and Settle that until all flows of a phase end as expected. Attempt bounds an
	// attempt of a flow.
	Start, Settle, Attempt time.Duration
	// Beat is the interval in which a run shows that it is alive. Poll is the pause between rounds of attempts.
	Beat, Poll time.Duration
	// Progress receives a line at each step.
	Progress func(line string)
	// Explain writes Why of failed results, while the pods and the policies of their phase exist.
	Explain func(ctx context.Context, namespace string, failed []*Result)
}

// cleaning bounds the time of the removal after an interruption.
const cleaning = 30 * time.Second

// concurrent bounds the clients that try their flows at a time.
const concurrent = 16

// run is a test that runs.
type run struct {
	Config
	cluster Cluster
	report  *Report
	placed  []Placed
}

// Run removes what earlier runs left, tests, and removes what it made. An error means that there is no answer.
func Run(ctx context.Context, c Cluster, cfg Config) (report *Report, err error) {
	r := &run{Config: cfg, cluster: c, report: &Report{Namespace: cfg.Namespace, Nodes: []NodeReport{}, Pods: []PodReport{}, Flows: []*Result{}}}
	for _, n := range cfg.Nodes {
		r.report.Nodes = append(r.report.Nodes, NodeReport{n.Name, n.OS})
	}
	if _, err := Clean(ctx, c, cfg, false); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.leave(ctx)) }() // also if an interruption hides whether the namespace was made
	if err := c.Create(ctx, Tenancy{cfg.Namespace, "0", cfg.Keep}); err != nil {
		return nil, err
	}
	alive, stop := context.WithCancel(ctx)
	var beating sync.WaitGroup
	beating.Go(func() { r.beat(alive) })
	defer beating.Wait()
	defer stop()
	if err := r.place(ctx); err != nil {
		return nil, err
	}
	for _, p := range Phases() {
		if err := r.phase(ctx, p); err != nil {
			return nil, fmt.Errorf("phase %q: %w", p.Name, err)
		}
	}
	return r.report, nil
}

// Clean removes the namespaces of runs that are not alive: their beat does not change. It leaves those that users keep,
// unless all is true. It returns the names.
func Clean(ctx context.Context, c Cluster, cfg Config, all bool) (removed []string, err error) {
	before, err := c.Tenancies(ctx)
	if err != nil {
		return nil, err
	}
	before = slices.DeleteFunc(before, func(t Tenancy) bool { return t.Kept && !all })
	if len(before) == 0 {
		return nil, nil
	}
	if slices.ContainsFunc(before, func(t Tenancy) bool { return !t.Kept }) {
		cfg.Progress(fmt.Sprintf("found %d namespaces of other runs: waiting %s to see whether they are alive", len(before), 3*cfg.Beat))
		if err := sleep(ctx, 3*cfg.Beat); err != nil {
			return nil, err
		}
	}
	now, err := c.Tenancies(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range now {
		if !slices.Contains(before, t) {
			continue // another run is alive, or has begun
		}
		if err := c.Remove(ctx, t.Namespace); err != nil {
			return removed, err
		}
		cfg.Progress("removed namespace " + t.Namespace + " of an earlier run")
		removed = append(removed, t.Namespace)
	}
	return removed, nil
}

// leave removes the namespace, also if the context is done.
func (r *run) leave(ctx context.Context) error {
	if r.Keep {
		r.Progress("namespace " + r.Namespace + " is kept")
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
	defer cancel()
	var err error
	for {
		if err = r.cluster.Remove(ctx, r.Namespace); err == nil {
			r.Progress("removed namespace " + r.Namespace)
			return nil
		}
		if sleep(ctx, r.Poll) != nil {
			return fmt.Errorf("namespace %s stays: delete it: %w", r.Namespace, err)
		}
	}
}

// beat shows other runs that this one is alive.
func (r *run) beat(ctx context.Context) {
	for n := 1; sleep(ctx, r.Beat) == nil; n++ {
		_ = r.cluster.Touch(ctx, Tenancy{r.Namespace, strconv.Itoa(n), r.Keep}) // the next beat repeats it
	}
}

// place starts the pods and waits for them. Pods that do not run in time are left out, and named in the report.
func (r *run) place(ctx context.Context) error {
	pods := Pods(r.Nodes)
	r.Progress(fmt.Sprintf("starting %d pods on %d nodes in namespace %s", len(pods), len(r.Nodes), r.Namespace))
	services, err := r.cluster.Start(ctx, r.Namespace, pods)
	if err != nil {
		return err
	}
	states, err := r.await(ctx, len(pods))
	if err != nil {
		return err
	}
	for _, p := range pods {
		s := states[p.Name]
		missing := ""
		if !s.Running {
			missing = fmt.Sprintf("not running after %s: %s", r.Start, s.Waits)
			r.Progress(fmt.Sprintf("pod %s on node %s: %s", p.Name, p.Node.Name, missing))
		} else {
			r.placed = append(r.placed, Placed{p, s.Addresses, services[p.Name]})
		}
		r.report.Pods = append(r.report.Pods, PodReport{p.Name, p.Node.Name, append([]netip.Addr{}, s.Addresses...), missing})
	}
	for _, role := range []Role{Client, Server} {
		if !slices.ContainsFunc(r.placed, func(p Placed) bool { return p.Role == role }) {
			p := pods[slices.IndexFunc(pods, func(p Pod) bool { return p.Role == role })]
			return fmt.Errorf("no pod of role %s runs after %s: pod %s on node %s: %s", role, r.Start, p.Name, p.Node.Name, states[p.Name].Waits)
		}
	}
	return nil
}

// await returns the states of the pods when all run, or the time is over.
func (r *run) await(ctx context.Context, want int) (map[string]PodState, error) {
	deadline, said := time.Now().Add(r.Start), -1
	for {
		states, err := r.cluster.States(ctx, r.Namespace)
		if err != nil {
			return nil, err
		}
		running := 0
		for _, s := range states {
			if s.Running {
				running++
			}
		}
		if running != said {
			r.Progress(fmt.Sprintf("%d of %d pods run", running, want))
			said = running
		}
		if running == want || time.Now().After(deadline) {
			return states, nil
		}
		if err := sleep(ctx, r.Poll); err != nil {
			return nil, err
		}
	}
}

// phase repeats the flows of a phase that do not end as expected, until all do or the time is over.
func (r *run) phase(ctx context.Context, p Phase) error {
	if err := r.cluster.Enforce(ctx, r.Namespace, p.Policies); err != nil {
		return err
	}
	flows := Flows(p, r.placed)
	var pending []*Result
	for i := range flows {
		pending = append(pending, newResult(&flows[i]))
	}
	r.report.Flows = append(r.report.Flows, pending...)
	for deadline := time.Now().Add(r.Settle); ; {
		last := time.Now().After(deadline)
		err := r.round(ctx, pending)
		pending = slices.DeleteFunc(pending, func(f *Result) bool { return f.Passed })
		if err != nil && (last && len(pending) == len(flows) || ctx.Err() != nil || errors.Is(err, ErrRefused)) {
			return err
		}
		if len(pending) == 0 || last {
			break
		}
		if err := sleep(ctx, r.Poll); err != nil {
			return err
		}
	}
	r.report.Passed, r.report.Failed = r.report.Passed+len(flows)-len(pending), r.report.Failed+len(pending)
	r.Progress(fmt.Sprintf("%s: %d of %d flows as expected", p.Name, len(flows)-len(pending), len(flows)))
	if len(pending) > 0 && r.Explain != nil {
		r.Explain(ctx, r.Namespace, pending)
	}
	return ctx.Err()
}

// round tries flows once, all clients at a time. It is an error if none of them can.
func (r *run) round(ctx context.Context, all []*Result) error {
	byClient := make(map[string][]*Result)
	for _, f := range all {
		byClient[f.From] = append(byClient[f.From], f)
	}
	var mu sync.Mutex
	var errs []error
	calls := 0
	tokens := make(chan struct{}, concurrent)
	var running sync.WaitGroup
	for _, flows := range byClient {
		for chunk := range slices.Chunk(flows, probe.MaxTargets) {
			calls++
			tokens <- struct{}{}
			running.Go(func() {
				defer func() { <-tokens }()
				if err := r.attempt(ctx, chunk); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				}
			})
		}
	}
	running.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	if calls > 0 && len(errs) == calls {
		return errs[0]
	}
	return nil
}

// attempt tries flows of one client.
func (r *run) attempt(ctx context.Context, flows []*Result) error {
	targets := make([]probe.Target, 0, len(flows))
	for _, f := range flows {
		targets = append(targets, f.Flow.Target)
	}
	answers, err := r.cluster.Probe(ctx, r.Namespace, flows[0].Flow.From.Pod, r.Attempt, targets)
	if err == nil && len(answers) != len(flows) {
		err = fmt.Errorf("pod %s: %d answers to %d attempts", flows[0].From, len(answers), len(flows))
	}
	for i, f := range flows {
		f.Attempts++
		if err != nil {
			f.Answer, f.Wrong = probe.Answer{Target: f.Target, State: probe.Failed, Error: err.Error()}, err.Error()
			continue
		}
		f.Answer = answers[i]
		f.Wrong = strings.TrimSpace(f.Flow.Judge(&answers[i]))
		f.Passed = f.Wrong == ""
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
