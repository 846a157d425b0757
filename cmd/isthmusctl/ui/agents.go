// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/page"
)

const (
	// keepReports is how long the reports of agents are used again.
	keepReports = 15 * time.Second
	// waitReports bounds the wait of a page for the first reports.
	waitReports = 5 * time.Second
)

// reports asks the agents of all nodes, at most once at a time, and keeps what they answer.
type reports[T any] struct {
	ctx     context.Context
	cluster *agents.Cluster
	timeout time.Duration
	// command are the arguments of isthmusctl on the nodes, and read reads what it printed there.
	command []string
	read    func([]agents.Result) T

	mutex   sync.Mutex
	running chan struct{} // closed at the end of the present request; nil if there is none
	at      time.Time
	all     T
	err     error
}

// get returns the last reports, and begins to ask for newer ones if they are old.
func (r *reports[T]) get(ctx context.Context) (none T, _ error) {
	r.mutex.Lock()
	if r.running == nil && time.Since(r.at) >= keepReports {
		r.running = make(chan struct{})
		go r.ask()
	}
	running, known := r.running, !r.at.IsZero()
	r.mutex.Unlock()
	if !known {
		bound, cancel := context.WithTimeout(ctx, waitReports)
		defer cancel()
		select {
		case <-running:
		case <-bound.Done():
			return none, errors.New("no answer yet: load the page again in a moment")
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.all, r.err
}

// ask gets the reports of all agents.
func (r *reports[T]) ask() {
	all, err := r.answers()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.all, r.err, r.at = all, err, time.Now()
	close(r.running)
	r.running = nil
}

func (r *reports[T]) answers() (none T, _ error) {
	bound, cancel := context.WithTimeout(r.ctx, r.timeout)
	defer cancel()
	list, err := r.cluster.List(bound)
	if err != nil {
		return none, fmt.Errorf("find the agents: %w", err)
	}
	return r.read(r.cluster.Run(r.ctx, r.timeout, agents.Everywhere(list, r.command...))), nil
}

// askAgents lets pages show what agents report. The context ends each request.
func askAgents(ctx context.Context, cfg watch.APIConfig, namespace string, timeout time.Duration, config *page.Config) error {
	c, err := agents.New(cfg, namespace)
	if err != nil {
		return err
	}
	states := &reports[map[string]page.Agent]{ctx: ctx, cluster: c, timeout: timeout, command: []string{"status", "-o", "json"}, read: readStates}
	numbers := &reports[*usage.Total]{ctx: ctx, cluster: c, timeout: timeout, command: []string{"policies", "-o", "json"}, read: readNumbers}
	config.Agents = states.get
	config.Usage = func(ctx context.Context, _ string) (*usage.Total, error) { return numbers.get(ctx) }
	return nil
}

// readStates reads what isthmusctl status -o json printed on all nodes.
func readStates(results []agents.Result) map[string]page.Agent {
	all := make(map[string]page.Agent, len(results))
	for _, r := range results {
		all[r.Node] = readState(r)
	}
	return all
}

// readState reads what isthmusctl status -o json printed on a node.
func readState(r agents.Result) page.Agent {
	if r.Err != nil {
		return page.Agent{Error: r.Err.Error()}
	}
	var s struct {
		Ready     bool     `json:"ready"`
		Version   string   `json:"version"`
		Platform  string   `json:"platform"`
		Endpoints int      `json:"endpoints"`
		Problems  []string `json:"problems"`
		Repairs   []string `json:"repairs"`
		Modes     []struct {
			Part, Mode string
			Count      int
		} `json:"path_modes"`
	}
	if err := json.Unmarshal(r.Output, &s); err != nil {
		return page.Agent{Error: unread(r, err)}
	}
	a := page.Agent{Ready: s.Ready, OS: r.OS, Version: s.Version, Platform: s.Platform, Endpoints: s.Endpoints, Problems: s.Problems, Repairs: s.Repairs}
	for _, m := range s.Modes {
		a.Modes = append(a.Modes, inspect.ModeText(m.Part, m.Mode, m.Count))
	}
	return a
}

// readNumbers adds up what isthmusctl policies -o json printed on all nodes.
func readNumbers(results []agents.Result) *usage.Total {
	answers := make([]usage.Answer, 0, len(results))
	for _, r := range results {
		a := usage.Answer{Node: r.Node, OS: r.OS}
		if r.Err != nil {
			a.Why = r.Err.Error()
		} else if err := json.Unmarshal(r.Output, &a.Policies); err != nil {
			a.Policies, a.Why = nil, unread(r, err)
		}
		answers = append(answers, a)
	}
	return usage.Sum(answers)
}

// unread says that an answer cannot be read.
func unread(r agents.Result, err error) string {
	return fmt.Sprintf("read the answer of pod %s/%s: %v", r.Namespace, r.Pod, err)
}
