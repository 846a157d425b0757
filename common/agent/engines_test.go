// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/model"
)

// beside starts an agent in policy mode that finds the other engines.
func (r *rig) beside(engines *[]string) {
	r.noPool, r.change = true, func(c *agent.Config) {
		c.PolicyOnly = true
		c.OtherEngines = func() ([]string, error) {
			if len(*engines) > 0 && (*engines)[0] == "" {
				return nil, errors.New("look for other policy engines: no memory")
			}
			return *engines, nil
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
		engines := []string{calico}
		r.beside(&engines)
		r.wantProblem("no policy is enforced: " + calico)
		if r.agent.Ready() {
			t.Error("the agent is ready, so it would be added to the other network's configuration")
		}
		_, err := r.agent.Add(context.Background(), foreignRequest(0, "10.9.0.1"))
		wantCode(t, err, 11, calico)
		wantCode(t, r.agent.Status(context.Background(), &cniframe.StatusRequest{}), 50, calico)
		r.mustDel(0)
		r.wantOnly()
		engines = []string{""}
		time.Sleep(6 * time.Second)
		r.wantProblem("no policy is enforced: look for other policy engines: no memory")
		engines = nil
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
		var engines []string
		r.beside(&engines)
		for n := range 2 {
			if _, err := r.agent.Add(context.Background(), foreignRequest(n, runningIP(n).String())); err != nil {
				t.Fatal(err)
			}
		}
		r.wantProblem("")
		engines = []string{calico}
		time.Sleep(61 * time.Second)
		r.wantProblem(calico)
		r.end()
		r.beside(&engines)
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
		engines = nil
		time.Sleep(61 * time.Second)
		r.wantProblem("")
		r.end()
	})
}
