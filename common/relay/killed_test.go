// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// agentVariable makes the test program an agent: its value is NAME=SOCKET.
const agentVariable = "ISTHMUS_TEST_RELAY_AGENT"

func TestMain(m *testing.M) {
	if v := os.Getenv(agentVariable); v != "" {
		name, socket, _ := strings.Cut(v, "=")
		if err := beAgent(name, socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	// agentRate is the number of flows that an agent process makes each second.
	agentRate = 250
	// burst is the number of flows that node c makes at once, each second: more than the queue of a reader holds.
	burst = 4000
)

// beAgent serves the flows of a node. It makes them between two lines on the standard input, and writes their number
// then. Nodes a and c lose some: the data path of a does not deliver every 50th, and the reader of c is too slow for
// bursts.
func beAgent(name, socket string) error {
	var made atomic.Uint64
	store := observe.NewStore(observe.Config{Keep: 4096}, quietLog, func() *model.Snapshot { return nil })
	s, err := hubble.New(hubble.Config{Node: name, Version: "1", History: 65536, Source: func() (*observe.Store, error) { return store, nil },
		Snapshot: func() *model.Snapshot { return nil }}, quietLog)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), hubble.Listener{Listener: l}) }()
	for store.Readers() == 0 { // later losses are reported from here on
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	input.Scan()
	stop := make(chan struct{})
	var maker sync.WaitGroup
	maker.Go(func() {
		tick := time.NewTicker(time.Second / agentRate)
		defer tick.Stop()
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			switch {
			case name == "a" && n%50 == 0:
				store.Undelivered(1)
				made.Add(1)
			case name == "c" && n%agentRate == 0:
				store.Add(events(name, int(made.Load()), burst))
				made.Add(burst)
			default:
				store.Add(events(name, int(made.Load()), 1))
				made.Add(1)
			}
		}
	})
	input.Scan()
	close(stop)
	maker.Wait()
	fmt.Println("made", made.Load())
	select {
	case err := <-served:
		return err
	case <-closed(input):
		return nil
	}
}

// closed is closed at the end of the input.
func closed(input *bufio.Scanner) <-chan struct{} {
	end := make(chan struct{})
	go func() {
		defer close(end)
		for input.Scan() {
		}
	}()
	return end
}

// events makes flows of now with these numbers.
func events(name string, first, count int) (list []model.FlowEvent) {
	now := time.Now()
	for n := first; n < first+count; n++ {
		list = append(list, model.FlowEvent{Time: now, Pod: model.PodID{Namespace: "shop", Name: name}, Verdict: model.Allow, Direction: model.Egress, Protocol: model.TCP,
			Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: uint16(n), DstPort: uint16(n >> 16)})
	}
	return list
}

// process is an agent process.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	input  io.WriteCloser
	output *bufio.Scanner
}

func startProcess(t *testing.T, name, socket string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), agentVariable+"="+name+"="+socket)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	p.output = bufio.NewScanner(out)
	p.expect("ready")
	return p
}

// expect reads a line that begins with this word, and returns the rest.
func (p *process) expect(word string) string {
	p.t.Helper()
	if !p.output.Scan() {
		p.t.Fatalf("agent %s ended before %q", p.name, word)
	}
	rest, ok := strings.CutPrefix(p.output.Text(), word)
	if !ok {
		p.t.Fatalf("agent %s says %q, want %q", p.name, p.output.Text(), word)
	}
	return rest
}

func (p *process) say() {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.input); err != nil {
		p.t.Fatalf("agent %s: %v", p.name, err)
	}
}

// evidence is what a client of the relay received.
type evidence struct {
	received, reported, made map[string]uint64
	highest                  map[string]int // number of a flow
	lags                     []time.Duration
	disorder                 int
	last                     time.Time
	killed                   bool // the relay has reported it
}

// take adds an answer.
func (e *evidence) take(t *testing.T, seen map[string]map[int]bool, m *observer.GetFlowsResponse) {
	t.Helper()
	node := m.GetNodeName()
	switch {
	case m.GetNodeStatus() != nil:
		if s := m.GetNodeStatus(); s.GetStateChange().String() == "NODE_UNAVAILABLE" && slices.Equal(s.GetNodeNames(), []string{"b"}) {
			e.killed = true
		} else if s.GetStateChange().String() != "NODE_CONNECTED" {
			t.Fatalf("node state %v", s)
		}
	case m.GetLostEvents() != nil:
		e.reported[node] += m.GetLostEvents().GetNumEventsLost()
	default:
		at, n := m.GetTime().AsTime(), number(m.GetFlow())
		e.lags = append(e.lags, time.Since(at))
		if at.Before(e.last) {
			e.disorder++
		}
		e.last = at
		if seen[node] == nil {
			seen[node] = make(map[int]bool)
		}
		if seen[node][n] {
			t.Fatalf("flow %d of node %s arrives twice", n, node)
		}
		seen[node][n] = true
		e.received[node]++
		e.highest[node] = max(e.highest[node], n)
	}
}

// complete reports whether every flow of the nodes that stay was received or reported as lost.
func (e *evidence) complete() bool {
	if !e.killed || len(e.made) < 2 {
		return false
	}
	for node, made := range e.made {
		if e.received[node]+e.reported[node] < made {
			return false
		}
	}
	return true
}

// killOne follows three agent processes through a relay. Node b is killed in the middle.
func killOne(t *testing.T) *evidence {
	t.Helper()
	dir := t.TempDir()
	nodes, all := make(map[string]string), make(map[string]*process)
	for _, name := range []string{"a", "b", "c"} {
		socket := filepath.Join(dir, name)
		all[name], nodes[name] = startProcess(t, name, socket), "unix://"+socket
	}
	c, _, _ := serve(t, nodes)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := c.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	e := &evidence{received: map[string]uint64{}, reported: map[string]uint64{}, made: map[string]uint64{}, highest: map[string]int{}}
	if m, err := stream.Recv(); err != nil || len(m.GetNodeStatus().GetNodeNames()) != 3 {
		t.Fatalf("got %v, %v", m, err)
	}
	// A follower that asks for kept flows gets those after them too, so none is between the streams' start and now.
	time.Sleep(3 * hold)
	for _, p := range all {
		p.say()
	}
	seen := make(map[string]map[int]bool)
	shot, ended := false, false
	for !e.complete() {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("made %v, received %v, reported as lost %v, node b reported as unavailable: %t: %v", e.made, e.received, e.reported, e.killed, err)
		}
		e.take(t, seen, m)
		if !shot && e.received["b"] >= 3*agentRate {
			shot = true
			if err := all["b"].cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if !ended && e.killed && e.received["a"] >= 7*agentRate {
			ended = true
			for _, name := range []string{"a", "c"} {
				all[name].say()
				var made uint64
				if _, err := fmt.Sscan(all[name].expect("made "), &made); err != nil {
					t.Fatal(err)
				}
				e.made[name] = made
			}
		}
	}
	return e
}

// lateness starts a goroutine that only sleeps. The result ends it, and returns how late it was at most.
func lateness(ctx context.Context) func() time.Duration {
	ctx, cancel := context.WithCancel(ctx)
	var worst time.Duration
	var done sync.WaitGroup
	done.Go(func() {
		const nap = 5 * time.Millisecond
		for ctx.Err() == nil {
			began := time.Now()
			time.Sleep(nap)
			worst = max(worst, time.Since(began)-nap)
		}
	})
	return func() time.Duration {
		cancel()
		done.Wait()
		return worst
	}
}

// attempts bounds how often TestKilledNode measures times again because the machine was too busy.
const attempts = 3

// TestKilledNode follows three nodes, each a process, while one of them is killed and two lose events: one in its data
// path, the other because bursts are too fast for a reader. Every flow arrives once or is reported as lost, and the
// node that is gone is named. Flows are in order, and 99 % of them arrive within the limit. A flow takes some hand-overs
// between threads, each of which may be as late as a goroutine that only sleeps. If that alone uses up the time that the
// relay waits for other nodes, or a hundredth of the flows take as long beyond it, another attempt measures order and lag. The last
// one decides in any case.
func TestKilledNode(t *testing.T) {
	const limit, handOvers = 1500 * time.Millisecond, 6
	for attempt := 1; ; attempt++ {
		late := lateness(t.Context())
		e := killOne(t)
		slack := handOvers * late()
		flows, missed, reported := e.account(t)
		slices.Sort(e.lags)
		p99 := e.lags[len(e.lags)*99/100]
		failed, busy := p99 >= limit || e.disorder > 0, slack > hold || p99 > 2*hold
		if failed && busy && attempt < attempts {
			t.Logf("attempt %d: %d flows are out of order, lag p99 is %s: the machine is too busy, with %d hand-overs up to %s late", attempt, e.disorder, p99, handOvers, slack)
			continue
		}
		if failed {
			t.Errorf("%d of %d flows are out of order, lag p99 is %s, want none and less than %s; the machine was too busy: %t, with %d hand-overs up to %s late",
				e.disorder, flows, p99, limit, busy, handOvers, slack)
		}
		fmt.Printf("relay: nodes=3 killed=1 flows=%d disorder=%d lag_p99=%dms slack=%dms missed=%d reported=%d\n",
			flows, e.disorder, p99.Milliseconds(), slack.Milliseconds(), missed, reported)
		return
	}
}

// account checks that every flow has arrived or was reported as lost, and returns the sums of all nodes.
func (e *evidence) account(t *testing.T) (flows, missed, reported uint64) {
	t.Helper()
	e.made["b"] = uint64(e.highest["b"] + 1) // what it made later, the state of the node reports
	for node, made := range e.made {
		if e.received[node]+e.reported[node] != made {
			t.Errorf("node %s made %d flows; %d arrived, %d were reported as lost", node, made, e.received[node], e.reported[node])
		}
		flows += e.received[node]
		missed += made - e.received[node]
		reported += e.reported[node]
	}
	if e.reported["a"] == 0 || e.reported["c"] == 0 {
		t.Errorf("no lost events were provoked: %v", e.reported)
	}
	return flows, missed, reported
}
