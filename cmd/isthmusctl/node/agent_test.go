// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/loglevel"
	"github.com/isthmus-net/isthmus/common/agent/server"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// node is an agent with a data path in memory, behind a real socket.
type node struct {
	t        *testing.T
	socket   string
	fake     *dataplanetest.Fake
	agent    *agent.Agent
	settings []string // of the agent
	// level is the level of logger, which writes to log.
	level  *loglevel.Level
	logger *slog.Logger
	log    *lockedBuffer
}

// lockedBuffer may be written and read at the same time.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func newNode(t *testing.T, options ...func(*node)) *node {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the agent's pipe is for administrators only")
	}
	dir, err := os.MkdirTemp("", "isthmus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, socket: filepath.Join(dir, "a.sock"), fake: dataplanetest.NewFake(model.Features{OS: model.Linux, Platform: "kernel 6.1"})}
	c := agent.Defaults()
	c.NodeName, c.Version, c.RecordDir = "node1", "v1.2.3", filepath.Join(dir, "endpoints")
	c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return n.fake, nil }
	var level slog.LevelVar
	n.level, n.log = loglevel.New(&level), &lockedBuffer{}
	log := slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{Level: &level}))
	n.logger = log
	for _, set := range options {
		set(n)
	}
	c.Settings = n.settings
	if n.agent, err = agent.New(c, log); err != nil {
		t.Fatal(err)
	}
	sockets, err := socket.Open(n.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served, ran := make(chan error, 1), make(chan error, 1)
	requests := server.New(n.agent, log)
	requests.Level = n.level
	go func() { served <- requests.Serve(ctx, sockets) }()
	go func() { ran <- n.agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for _, c := range []chan error{served, ran} {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
	})
	n.started()
	return n
}

// started waits until the agent has opened its data path: the socket answers before that.
func (n *node) started() {
	n.t.Helper()
	n.published("an open data path", func(s agent.NodeStatus) bool { return s.Features.Platform != "" })
}

// published waits until the agent has published a description of itself that is as expected.
func (n *node) published(what string, expected func(agent.NodeStatus) bool) {
	n.t.Helper()
	for deadline := time.Now().Add(time.Minute); !expected(n.agent.Node(n.t.Context())); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("the agent has not published %s for a minute", what)
		}
	}
}

// fill attaches two pods and breaks one of them.
func (n *node) fill() {
	n.t.Helper()
	n.attach()
	n.fake.Break("c1:eth0", "routes")
	var c dataplane.Counters
	c.Counted, c.Verdicts = model.AllFlows, [2][2]uint64{{1, 2}, {3, 4}}
	c.PathModes = []dataplane.PathMode{{Part: "pods", Mode: "tcx", Count: 1}, {Part: "pods", Mode: "clsact", Count: 1}, {Part: "other_nodes", Mode: "stack_vxlan", Count: 1}}
	c.Facts = []string{"fabric routes: 3 of 3 in force, forwarding on"}
	n.fake.SetCounters(c)
	n.fake.SetVerdicts(map[model.EndpointID][2][2]uint64{"c0:eth0": {{5, 6}, {7, 8}}})
	n.published("two endpoints", func(s agent.NodeStatus) bool { return s.Endpoints == 2 })
}

// attach attaches two pods.
func (n *node) attach() {
	n.t.Helper()
	self := &model.Node{Name: "node1", OS: model.Linux, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}
	var pods []*model.Pod
	for _, name := range []string{"api", "web"} {
		pods = append(pods, &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: "node1", Labels: model.MakeLabels(map[string]string{"app": name})})
	}
	web := model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"web"}})
	policy := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "shut"}, Tier: model.TierNetworkPolicy,
		Isolates: [2]bool{true, true}, Subject: model.PodSelector{Namespace: "shop", Pods: web}}
	n.agent.Publish(model.MakeSnapshot(nil, []*model.Node{self}, pods, []*model.Policy{policy}))
	for i, p := range pods {
		_, err := n.agent.Add(context.Background(), &cniframe.AddRequest{Attachment: cniframe.Attachment{ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"},
			Netns: fmt.Sprintf("/run/netns/c%d", i), PodNamespace: p.Namespace, PodName: p.Name})
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// ctl runs a command line of isthmusctl.
func ctl(args ...string) (status int, stdout, stderr string) { return clitest.Run(Commands, args...) }

// Parts of the output that vary between runs, or with details of the compiler.
var (
	stamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:]+Z|"[0-9]{18,}"`)
	table = regexp.MustCompile(`[0-9a-f]{32}`)
)

func TestGolden(t *testing.T) {
	n := newNode(t)
	n.fill()
	for name, args := range map[string][]string{
		"status.txt":          {"status"},
		"status-wide.txt":     {"status", "-o", "wide"},
		"status.json":         {"status", "-o", "json"},
		"endpoints.txt":       {"endpoints"},
		"endpoints-wide.txt":  {"endpoints", "--output=wide"},
		"endpoints-json.json": {"endpoints", "-o", "json"},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := ctl(append(args, "--socket", n.socket)...)
			if status != 0 || errs != "" {
				t.Errorf("exit status %d, %q", status, errs)
			}
			if strings.HasSuffix(name, ".json") && !json.Valid([]byte(out)) {
				t.Errorf("not JSON: %s", out)
			}
			out = table.ReplaceAllString(stamp.ReplaceAllString(out, "TIME"), strings.Repeat("f", 32))
			clitest.Golden(t, filepath.Join("testdata", name), out, *update)
		})
	}
}

// TestEndpointsOf: a pod or a namespace narrows the list, and a pod of another node is not an empty list.
func TestEndpointsOf(t *testing.T) {
	n := newNode(t)
	n.fill()
	for _, c := range []struct {
		args      []string
		status    int
		has, lack string
	}{
		{[]string{"-n", "shop"}, 0, "shop/api ", "bank/"},
		{[]string{"--pod", "shop/api"}, 0, "shop/api ", "shop/web"},
		{[]string{"--pod", "shop/nosuch"}, 2, "--pod shop/nosuch: not attached to this node: ask the node on which it runs", "POD"},
		{[]string{"--pod", "api"}, 2, `--pod "api": give NAMESPACE/NAME`, "POD"},
	} {
		status, out, errs := ctl(append(append([]string{"endpoints"}, c.args...), "--socket", n.socket)...)
		if status != c.status || !strings.Contains(out+errs, c.has) || strings.Contains(out, c.lack) {
			t.Errorf("%v: exit status %d, %q, %q", c.args, status, out, errs)
		}
	}
}

// TestNotEnforced: a pod that is not under policy is not shown as "in force", and status has a problem.
func TestNotEnforced(t *testing.T) {
	n := newNode(t)
	n.fill()
	var out, state string
	for range 5 { // the agent repairs it at the next check
		n.fake.Break("c0:eth0", "deny")
		if _, out, _ = ctl("endpoints", "--socket", n.socket); strings.Contains(out, "NOT enforced") {
			break
		}
	}
	if !regexp.MustCompile(`shop/api +10.0.1.2 +NOT enforced +isthmus +deny is missing`).MatchString(out) {
		t.Errorf("endpoints:\n%s", out)
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && !strings.Contains(state, "NOT enforced"); time.Sleep(100 * time.Millisecond) {
		_, state, _ = ctl("status", "--socket", n.socket)
	}
	if !strings.Contains(state, "endpoint c0:eth0 of pod shop/api: policy is NOT enforced: deny is missing") {
		t.Errorf("status:\n%s", state)
	}
}

func TestNotReady(t *testing.T) {
	n := newNode(t)
	time.Sleep(50 * time.Millisecond)
	status, out, errs := ctl("status", "--socket", n.socket)
	if status != 3 || !strings.Contains(errs, "not ready") || !strings.Contains(out, "the state of the cluster is not known yet") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if status, out, _ := ctl("endpoints", "--socket", n.socket); status != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("exit status %d, %q", status, out)
	}
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	silent := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket.Inspection(silent))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, c := range map[string]struct {
		args   []string
		status int
		text   string
	}{
		"no agent":           {[]string{"status", "--socket", filepath.Join(dir, "none")}, 2, "start isthmus-agent, or give the path of its socket with --socket"},
		"silent agent":       {[]string{"endpoints", "--socket", silent, "--timeout", "200ms"}, 2, "no answer within 200ms"},
		"unknown flag":       {[]string{"status", "--colour"}, 2, "unknown flag: --colour: see isthmusctl status --help"},
		"unknown subcommand": {[]string{"frobnicate"}, 2, `unexpected argument "frobnicate"`},
		"argument":           {[]string{"endpoints", "x"}, 2, `unexpected argument "x": did you mean --pod NAMESPACE/x? see isthmusctl endpoints --help`},
		"output":             {[]string{"endpoints", "-o", "xml"}, 2, `--output "xml": give text, wide, json or yaml`},
		"timeout":            {[]string{"endpoints", "--timeout", "-1s"}, 2, "give a duration above 0"},
		"timeout text":       {[]string{"endpoints", "--timeout", "soon"}, 2, `--timeout "soon": give a duration`},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := ctl(c.args...)
			if status != c.status || !strings.Contains(errs, c.text) || strings.Count(errs, "\n") != 1 || out != "" {
				t.Errorf("exit status %d, %q, %q, want %d with %q", status, out, errs, c.status, c.text)
			}
		})
	}
}
