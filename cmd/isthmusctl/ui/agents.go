// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

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

// reports asks the agents of all nodes, at most once at a time.
type reports struct {
	ctx     context.Context
	cluster *agents.Cluster
	timeout time.Duration

	mutex   sync.Mutex
	running chan struct{} // closed at the end of the present request; nil if there is none
	at      time.Time
	all     map[string]page.Agent
	err     error
}

// newReports prepares to ask agents. The context ends each request.
func newReports(ctx context.Context, cfg watch.APIConfig, timeout time.Duration) (*reports, error) {
	c, err := agents.New(cfg)
	return &reports{ctx: ctx, cluster: c, timeout: timeout}, err
}

// get returns the last reports, and begins to ask for newer ones if they are old.
func (r *reports) get(ctx context.Context) (map[string]page.Agent, error) {
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
			return nil, errors.New("no answer yet: load the page again in a moment")
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.all, r.err
}

// ask gets the reports of all agents.
func (r *reports) ask() {
	all, err := r.status()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.all, r.err, r.at = all, err, time.Now()
	close(r.running)
	r.running = nil
}

func (r *reports) status() (map[string]page.Agent, error) {
	bound, cancel := context.WithTimeout(r.ctx, r.timeout)
	defer cancel()
	list, err := r.cluster.List(bound)
	if err != nil {
		return nil, fmt.Errorf("find the agents: %w", err)
	}
	all := make(map[string]page.Agent, len(list))
	for _, result := range r.cluster.Run(r.ctx, r.timeout, agents.Everywhere(list, "status", "-o", "json")) {
		all[result.Node] = readReport(result)
	}
	return all, nil
}

// readReport reads what isthmusctl status -o json printed on a node.
func readReport(r agents.Result) page.Agent {
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
	}
	if err := json.Unmarshal(r.Output, &s); err != nil {
		return page.Agent{Error: fmt.Sprintf("read the answer of pod %s/%s: %v", r.Namespace, r.Pod, err)}
	}
	return page.Agent{Ready: s.Ready, Version: s.Version, Platform: s.Platform, Endpoints: s.Endpoints, Problems: s.Problems, Repairs: s.Repairs}
}
