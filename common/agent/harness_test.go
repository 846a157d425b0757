// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

var linux = model.Features{OS: model.Linux, Platform: "test", IPv6: true}

// rig is a node: the state that survives agents, and the current agent.
type rig struct {
	t    *testing.T
	dir  string
	fake *dataplanetest.Fake
	// noPool is true if the agent allocates no addresses.
	noPool bool
	// change edits the Config of the agents started from now on.
	change func(*agent.Config)
	// step is called before each step of an agent.
	step atomic.Pointer[func(name string)]

	agent *agent.Agent
	stop  context.CancelFunc
	ended chan error
}

// newRig makes a node without an agent. It must be called in a synctest bubble.
func newRig(t *testing.T) *rig {
	t.Helper()
	return &rig{t: t, dir: filepath.Join(memoryDir(t), "endpoints"), fake: dataplanetest.NewFake(linux)}
}

// memoryDir creates a directory in memory if such a file system exists. These tests write thousands of
// records, and on Windows each is flushed (ADR 33).
func memoryDir(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "isthmus")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// stride is how many steps the tests of crashes and failures go on at a time.
func stride() int {
	if testing.Short() {
		return 3
	}
	return 1
}

func (r *rig) config() agent.Config {
	c := agent.Defaults()
	c.NodeName, c.Version, c.RecordDir = "node1", "v0.0.0-test", r.dir
	c.Open = func(context.Context, model.Node) (dataplane.Backend, error) {
		r.fake.Reopen()
		return r.fake, nil
	}
	c.Step = func(name string) {
		if step := r.step.Load(); step != nil {
			(*step)(name)
		}
	}
	if r.change != nil {
		r.change(&c)
	}
	return c
}

// start starts an agent; the previous one must have ended.
func (r *rig) start() {
	r.t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if os.Getenv("ISTHMUS_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(r.t.Output(), nil))
	}
	a, err := agent.New(r.config(), log)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel) // a test that fails must not leave an agent in its bubble
	r.agent, r.stop, r.ended = a, cancel, make(chan error, 1)
	ended := r.ended
	go func() {
		err := errors.New("the loop's goroutine ended")
		defer func() { ended <- err }() // also if the goroutine exits
		err = a.Run(ctx)
	}()
}

// end stops the agent normally.
func (r *rig) end() {
	r.t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Fatalf("agent ended with %v", err)
	}
}

// drop forgets an agent that has crashed.
func (r *rig) drop() {
	r.stop()
	<-r.ended
}

// run executes a test in a bubble with its own clock.
func run(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newRig(t)) })
}

func addRequest(n int) *cniframe.AddRequest {
	return &cniframe.AddRequest{Attachment: cniframe.Attachment{ContainerID: fmt.Sprintf("c%d", n), IfName: "eth0"},
		Netns: fmt.Sprintf("/run/netns/c%d", n), PodNamespace: "shop", PodName: fmt.Sprintf("web-%d", n), PodUID: fmt.Sprintf("uid-%d", n), Network: "pods"}
}

func id(n int) model.EndpointID { return model.EndpointID(fmt.Sprintf("c%d:eth0", n)) }

// add attaches pod n.
func (r *rig) add(n int) ([]netip.Addr, error) {
	return r.addContext(context.Background(), addRequest(n))
}

func (r *rig) addContext(ctx context.Context, req *cniframe.AddRequest) ([]netip.Addr, error) {
	resp, err := r.agent.Add(ctx, req)
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, s := range resp.Addresses {
		ips = append(ips, netip.MustParsePrefix(s).Addr())
	}
	return ips, nil
}

func (r *rig) mustAdd(n int) []netip.Addr {
	r.t.Helper()
	ips, err := r.add(n)
	if err != nil {
		r.t.Fatalf("ADD %d: %v", n, err)
	}
	return ips
}

func (r *rig) del(n int) error {
	err := r.agent.Del(context.Background(), &cniframe.DelRequest{Attachment: addRequest(n).Attachment})
	return err
}

func (r *rig) mustDel(n int) {
	r.t.Helper()
	if err := r.del(n); err != nil {
		r.t.Fatalf("DEL %d: %v", n, err)
	}
}

func (r *rig) gc(valid ...int) (removed []string, err error) {
	req := &cniframe.GCRequest{Network: "pods"}
	for _, n := range valid {
		req.Valid = append(req.Valid, addRequest(n).Attachment)
	}
	resp, err := r.agent.GC(context.Background(), req)
	if resp == nil {
		return nil, err
	}
	for _, a := range resp.Removed {
		removed = append(removed, a.ContainerID+":"+a.IfName)
	}
	return removed, err
}

func (r *rig) check(n int, addresses ...string) error {
	err := r.agent.Check(context.Background(), &cniframe.CheckRequest{Attachment: addRequest(n).Attachment, Netns: addRequest(n).Netns, Addresses: addresses})
	return err
}

// code returns the CNI code of an error, 0 if there is none.
func code(err error) uint32 {
	var e *agent.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Code
	}
	return 1000
}

// wantCode checks the code of an error and a part of its text.
func wantCode(t *testing.T, err error, want uint32, text string) {
	t.Helper()
	if code(err) != want || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("got code %d (%v), want %d with %q", code(err), err, want, text)
	}
}

// cluster makes snapshots.
type cluster struct {
	pods  int
	edit  func(n int, p *model.Pod)
	nodes []*model.Node
	// allowed are the addresses that the pods may request.
	allowed string
	more    []*model.Policy
}

func node(name string, cidrs ...string) *model.Node {
	n := &model.Node{Name: name, OS: model.Linux}
	switch name {
	case "node1":
		n.Addresses = []netip.Addr{netip.MustParseAddr("192.168.0.1")}
	default:
		n.Addresses = []netip.Addr{netip.MustParseAddr("192.168.0.2")}
	}
	for _, c := range cidrs {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(c))
	}
	return n
}

// snapshot has pods shop/web-0, web-1, ... of node1, of which only those with an even
// number accept connections from others, and one pod of node2.
func (c cluster) snapshot() *model.Snapshot {
	nodes := c.nodes
	if nodes == nil {
		nodes = []*model.Node{node("node1", "10.0.1.0/24"), node("node2", "10.0.2.0/24")}
	}
	pods := []*model.Pod{{PodID: model.PodID{Namespace: "shop", Name: "far"}, Node: "node2", IPs: []netip.Addr{netip.MustParseAddr("10.0.2.7")}}}
	for n := range c.pods {
		even := fmt.Sprint(n%2 == 0)
		p := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: fmt.Sprintf("web-%d", n)}, UID: fmt.Sprintf("uid-%d", n),
			Labels: model.MakeLabels(map[string]string{"even": even}), Node: "node1"}
		if c.edit != nil {
			c.edit(n, p)
		}
		pods = append(pods, p)
	}
	shut := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "shut"}, Tier: model.TierNetworkPolicy, Isolates: [2]bool{true, false},
		Subject: model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "even", Operator: model.In, Values: []string{"false"}})}}
	shop := model.NewNamespace("shop", nil)
	shop.AllowedIPs = c.allowed
	return model.MakeSnapshot([]*model.Namespace{shop}, nodes, pods, append([]*model.Policy{shut}, c.more...))
}

// reachable reports whether the pod of node2 reaches pod n.
func (r *rig) reachable(n int) bool {
	return r.fake.Decide(id(n), model.Ingress, netip.MustParseAddr("10.0.2.7"), model.TCP, 80) == model.Allow
}

// attached lists the attachments in the data path.
func (r *rig) attached() []string {
	r.t.Helper()
	var ids []string
	for _, line := range strings.Split(r.fake.Dump(), "\n") {
		if rest, ok := strings.CutPrefix(line, "endpoint "); ok {
			ids = append(ids, strings.Fields(rest)[0])
		}
	}
	return ids
}

// records lists the records by state.
func (r *rig) records() map[endpoint.State][]string {
	r.t.Helper()
	s, err := endpoint.Open(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	all, problems, err := s.Load()
	if err != nil || len(problems) > 0 {
		r.t.Fatalf("load records: %v %v", err, problems)
	}
	by := make(map[endpoint.State][]string)
	for _, rec := range all {
		by[rec.State] = append(by[rec.State], string(rec.ID()))
		slices.Sort(by[rec.State])
	}
	return by
}

// wantOnly checks that exactly these pods are attached, recorded and hold
// addresses.
func (r *rig) wantOnly(pods ...int) {
	r.t.Helper()
	var want []string
	for _, n := range pods {
		want = append(want, string(id(n)))
	}
	slices.Sort(want)
	synctest.Wait() // the loop publishes after it answers
	records := r.records()
	if got := r.attached(); !slices.Equal(got, want) {
		r.t.Errorf("attached %v, want %v", got, want)
	}
	if !slices.Equal(records[endpoint.Ready], want) || len(records[endpoint.Adding]) > 0 {
		r.t.Errorf("records %v, want %v ready", records, want)
	}
	if used := r.metric(`isthmus_ipam_addresses{pool="10.0.1.0/24",state="used"}`); !r.noPool && used != fmt.Sprint(len(want)) {
		r.t.Errorf("%s addresses used, want %d", used, len(want))
	}
}

// crashAt ends the goroutine at the nth step of the agent or the data path.
func (r *rig) crashAt(n int) {
	steps := 0
	count := func() {
		steps++
		if steps == n {
			runtime.Goexit()
		}
	}
	r.onStep(func(string) { count() })
	r.fake.SetFault(func(context.Context, string) error { count(); return nil })
}

// calm ends all faults.
func (r *rig) calm() {
	r.step.Store(nil)
	r.fake.SetFault(nil)
}

// onStep sets the function that is called before each step of the agent.
func (r *rig) onStep(f func(name string)) { r.step.Store(&f) }

// settle waits until the agent is idle.
func (r *rig) settle() {
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

type agentConfig = agent.Config
