// SPDX-License-Identifier: Apache-2.0

package mixed_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// explanations are the events of denied flows that the agents of all nodes reported, as isthmusctl events prints them.
type explanations struct {
	mu     sync.Mutex
	events map[denial]string // the last cause
	missed uint64
}

// denial is a denied flow as the node reports it that enforces the policy. Pods are compared by their names.
type denial struct {
	node, namespace, pod, direction, src, dst, protocol string
	port                                                uint32
}

// event is a line of isthmusctl events -o json.
type event struct {
	Event struct {
		Namespace string `json:"pod_namespace"`
		Pod       string `json:"pod_name"`
		Direction string `json:"direction"`
		Src       string `json:"src"`
		Dst       string `json:"dst"`
		Protocol  string `json:"protocol"`
		Port      uint32 `json:"dst_port"`
		Cause     string `json:"cause"`
	} `json:"event"`
	Missed uint64 `json:"missed"`
}

// follow starts to follow the events of all nodes, until the test ends.
func follow(t *testing.T, c *cluster.Cluster, bin string) *explanations {
	t.Helper()
	x := &explanations{events: make(map[denial]string)}
	following, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	for _, n := range c.Nodes {
		args := []string{"events", "--follow", "--last", "0", "--verdict", "deny", "-o", "json"}
		cmd := n.Ctl(following, args...)
		if underWine(t) && n.OS == model.Windows {
			cmd = n.Executable(following, filepath.Join(bin, "isthmusctl.exe"), args...)
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.NS.Do(cmd.Start); err != nil {
			t.Fatal(err)
		}
		done.Go(func() { x.read(n.Name, bufio.NewScanner(out), cmd) })
	}
	return x
}

func (x *explanations) read(node string, lines *bufio.Scanner, cmd *exec.Cmd) {
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintf(os.Stderr, "node %s: line %q: %v\n", node, lines.Text(), err)
			continue
		}
		d := e.Event
		x.mu.Lock()
		x.events[denial{node, d.Namespace, d.Pod, d.Direction, d.Src, d.Dst, d.Protocol, d.Port}] = d.Cause
		x.missed += e.Missed
		x.mu.Unlock()
	}
	_ = cmd.Wait() // it is killed
}

// forget forgets what earlier policies decided.
func (x *explanations) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.events)
}

// explain compares the events of denied flows with the causes of the reference. A flow that an earlier policy denied
// too may have been tried before the agent knew the last policy, so flows without the wanted event are tried again. It
// returns the number of explained flows, and a line for each other.
func (x *explanations) explain(ctx context.Context, c *cluster.Cluster, flows []*cluster.Flow) (n int, wrong []string, err error) {
	var denied []*cluster.Flow
	for _, f := range flows {
		if f.Got == model.Deny {
			denied = append(denied, f)
		}
	}
	rest := denied
	for deadline := time.Now().Add(40 * time.Second); ; {
		rest, wrong = x.wait(rest)
		if len(rest) == 0 || time.Now().After(deadline) {
			return len(denied) - len(rest), wrong, nil
		}
		if err := c.Try(ctx, rest, func(int) {}); err != nil {
			return 0, nil, err
		}
	}
}

// eventPatience is how long events may take, on a busy machine, before flows are tried again.
const eventPatience = 3 * time.Second

// wait waits for events, and returns the flows without the wanted one.
func (x *explanations) wait(flows []*cluster.Flow) (rest []*cluster.Flow, wrong []string) {
	for deadline := time.Now().Add(eventPatience); ; time.Sleep(50 * time.Millisecond) {
		rest, wrong = x.compare(flows)
		if len(rest) == 0 || time.Now().After(deadline) {
			return rest, wrong
		}
	}
}

func (x *explanations) compare(flows []*cluster.Flow) (rest []*cluster.Flow, wrong []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range flows {
		pod, direction, cause := f.To, model.Ingress, f.Ingress.Cause
		if f.From.Pod != nil && f.Egress.Verdict == model.Deny {
			pod, direction, cause = f.From.Pod, model.Egress, f.Egress.Cause
		}
		d := denial{pod.Node.Name, pod.Namespace, pod.Name, direction.String(), f.Src.String(), f.Dst.String(), f.Protocol.String(), uint32(f.Port)}
		if got, ok := x.events[d]; !ok || got != cause.String() {
			rest, wrong = append(rest, f), append(wrong, fmt.Sprintf("%+v: event says %q, want %q", d, got, cause))
		}
	}
	return rest, wrong
}
