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
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// explanations are the events of denied flows that the agents of all nodes reported, as isthmusctl events prints them.
type explanations struct {
	t      *testing.T
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
	x := &explanations{t: t, events: make(map[denial]string)}
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
		done.Go(func() { x.read(following, n.Name, bufio.NewScanner(out), cmd) })
	}
	return x
}

func (x *explanations) read(following context.Context, node string, lines *bufio.Scanner, cmd *exec.Cmd) {
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			x.t.Errorf("node %s: line %q: %v", node, lines.Text(), err)
			continue
		}
		d := e.Event
		x.mu.Lock()
		x.events[denial{node, d.Namespace, d.Pod, d.Direction, d.Src, d.Dst, d.Protocol, d.Port}] = d.Cause
		x.missed += e.Missed
		x.mu.Unlock()
	}
	err := lines.Err()
	if waited := cmd.Wait(); following.Err() == nil { // afterwards it is killed
		x.t.Errorf("node %s: isthmusctl events ended: %v, %v", node, err, waited)
	}
}

// forget forgets what earlier policies decided.
func (x *explanations) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.events)
}

// explain compares the events of denied flows with the causes of the reference. It returns the number of explained
// flows, and a line for each other. No event may be missing.
func (x *explanations) explain(flows []*cluster.Flow) (n int, wrong []string) {
	denied := slices.DeleteFunc(slices.Clone(flows), func(f *cluster.Flow) bool { return f.Got != model.Deny })
	for deadline := time.Now().Add(eventPatience); ; time.Sleep(50 * time.Millisecond) {
		if wrong = x.compare(denied); len(wrong) == 0 || time.Now().After(deadline) {
			break
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.missed > 0 {
		x.t.Errorf("%d events were skipped: the reader was too slow", x.missed)
	}
	return len(denied) - len(wrong), wrong
}

// eventPatience is how long events may take, on a busy machine.
const eventPatience = 20 * time.Second

func (x *explanations) compare(flows []*cluster.Flow) (wrong []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range flows {
		pod, direction, cause := f.To, model.Ingress, f.Ingress.Cause
		if f.From.Pod != nil && f.Egress.Verdict == model.Deny {
			pod, direction, cause = f.From.Pod, model.Egress, f.Egress.Cause
		}
		d := denial{pod.Node.Name, pod.Namespace, pod.Name, direction.String(), f.Src.String(), f.Dst.String(), f.Protocol.String(), uint32(f.Port)}
		if got, ok := x.events[d]; !ok || got != cause.String() {
			wrong = append(wrong, fmt.Sprintf("%+v: event says %q, want %q", d, got, cause))
		}
	}
	return wrong
}
