// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/model"
)

// engines are the other engines of a node. An agent may look for them while a test changes them.
type engines struct{ all atomic.Value }

func (e *engines) set(all ...string) { e.all.Store(all) }

// beside starts an agent in policy mode that finds the other engines.
func (r *rig) beside(e *engines) {
	r.noPool, r.change = true, func(c *agent.Config) {
		c.PolicyOnly = true
		c.OtherEngines = func() ([]string, error) {
			all := e.all.Load().([]string)
			if len(all) > 0 && all[0] == "" {
				return nil, errors.New("look for other policy engines: no memory")
			}
			return all, nil
		}
	}
	r.start()
	r.agent.Publish(cluster{pods: 4, nodes: []*model.Node{node("node1")}}.snapshot())
	r.settle()
}

// wantProblem checks the problems that isthmusctl status shows.
func (r *rig) wantProblem(want string) {
	r.t.Helper()
	got := strings.Join(r.agent.Node(context.Background()).Problems, "\n")
	if want == "" && got != "" || !strings.Contains(got, want) {
		r.t.Errorf("problems %q, want %q", got, want)
	}
}

const calico = "Calico (Felix) enforces network policy on this node: uninstall it"

// An agent without endpoints does not open the data path beside another engine, or while it cannot look for one. It
// keeps running, names the engine, lets pods end, and opens the data path once the engine is gone.
func TestOtherEngine(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		var other engines
		other.set(calico)
		r.beside(&other)
		r.wantProblem("no policy is enforced: " + calico)
		if r.agent.Ready() {
			t.Error("the agent is ready, so it would be added to the other network's configuration")
		}
		_, err := r.agent.Add(context.Background(), foreignRequest(0, "10.9.0.1"))
		wantCode(t, err, 11, calico)
		wantCode(t, r.agent.Status(context.Background(), &cniframe.StatusRequest{}), 50, calico)
		r.mustDel(0)
		r.wantOnly()
		other.set("")
		time.Sleep(6 * time.Second)
		r.wantProblem("no policy is enforced: look for other policy engines: no memory")
		other.set()
		time.Sleep(6 * time.Second)
		r.wantProblem("")
		if _, err := r.agent.Add(context.Background(), foreignRequest(0, "10.9.0.1")); err != nil {
			t.Error(err)
		}
		r.wantOnly(0)
		r.end()
	})
}

// An agent with endpoints keeps enforcing policy beside an engine that came later, also after a restart, and names it.
func TestOtherEngineComesLater(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		var other engines
		other.set()
		r.beside(&other)
		for n := range 2 {
			if _, err := r.agent.Add(context.Background(), foreignRequest(n, runningIP(n).String())); err != nil {
				t.Fatal(err)
			}
		}
		r.wantProblem("")
		other.set(calico)
		time.Sleep(61 * time.Second)
		r.wantProblem(calico)
		r.end()
		r.beside(&other)
		r.wantProblem(calico)
		if !r.reachable(0) || r.reachable(1) {
			t.Errorf("pods are reachable: %t, %t, want the first only", r.reachable(0), r.reachable(1))
		}
		r.wantOnly(0, 1)
		r.mustDel(0)
		if _, err := r.agent.Add(context.Background(), foreignRequest(2, "10.9.0.1")); err != nil {
			t.Error(err)
		}
		r.wantOnly(1, 2)
		other.set()
		time.Sleep(61 * time.Second)
		r.wantProblem("")
		r.end()
	})
}
