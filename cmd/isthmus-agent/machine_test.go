// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestMain runs the agent when the test starts itself as a child process. The child keeps its data
// path in files, and kills itself at a step.
func TestMain(m *testing.M) {
	dir := os.Getenv("ISTHMUS_TEST_DATAPATH")
	switch dir {
	case "":
		os.Exit(m.Run())
	case "wait": // this process only keeps its namespaces alive
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	killAt, _ := strconv.Atoi(os.Getenv("ISTHMUS_TEST_KILL_AT"))
	var mu sync.Mutex
	steps := 0
	step := func(string) {
		mu.Lock()
		defer mu.Unlock()
		if steps++; steps == killAt {
			kill()
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	e := env{stdout: os.Stdout, stderr: os.Stderr, step: step, backend: newBackend}
	if dir != "real" {
		e.backend = func(_ *options, step func(string), _ *slog.Logger) opener {
			return opener{open: func(context.Context, model.Node) (dataplane.Backend, error) {
				return &dirBackend{dir: dir, step: step}, nil
			}}
		}
	}
	os.Exit(e.run(ctx, os.Args[1:]))
}

// kill ends the process immediately, as the kernel does when memory runs out.
func kill() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		p.Kill()
	}
	select {}
}

// machine holds the directories that survive agents. It runs one agent at a time.
type machine struct {
	t         *testing.T
	dir       string
	pods      int
	cmd       *exec.Cmd
	ended     chan error
	log       bytes.Buffer
	extraArgs []string
	// prefix is a command that starts the agent, for example in other namespaces.
	prefix []string
	// datapath is the store of the data path: a directory, or "real".
	datapath string
	// netns returns the path of a pod's network namespace.
	netns func(n int) string
}

func newMachine(t *testing.T, pods int) *machine {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the agent's pipe is for administrators only")
	}
	dir, err := os.MkdirTemp("", "isthmus")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, pods: pods, datapath: filepath.Join(dir, "datapath"), netns: func(n int) string { return fmt.Sprintf("/n/%d", n) }}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, d := range []string{"manifests", "datapath", "state"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Node\nmetadata: {name: node1}\nspec: {podCIDRs: [10.0.1.0/24]}\n")
	for n := range pods {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web-%d, namespace: shop}\nspec: {nodeName: node1, containers: [{name: c, image: example.com/web}]}\n", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "manifests", "all.yaml"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) socket() string { return filepath.Join(m.dir, "a.sock") }

// start runs an agent that kills itself at a step; 0 means never.
func (m *machine) start(killAt int) {
	m.t.Helper()
	args := append([]string{"--node-name", "node1", "--manifests", filepath.Join(m.dir, "manifests"), "--state-dir", filepath.Join(m.dir, "state"),
		"--socket", m.socket(), "--http-address", "", "--quarantine", "0s"}, m.extraArgs...)
	line := slices.Concat(m.prefix, []string{os.Args[0]}, args)
	m.cmd = exec.Command(line[0], line[1:]...)
	m.cmd.Env = append(os.Environ(), "ISTHMUS_TEST_DATAPATH="+m.datapath, fmt.Sprintf("ISTHMUS_TEST_KILL_AT=%d", killAt))
	m.log.Reset()
	m.cmd.Stdout, m.cmd.Stderr = &m.log, &m.log
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.ended = make(chan error, 1)
	cmd, ended := m.cmd, m.ended
	go func() { ended <- cmd.Wait() }()
}

// dial waits for the agent's socket while the agent runs.
func (m *machine) dial(ctx context.Context) (net.Conn, error) {
	for {
		c, err := socket.Dial(ctx, m.socket())
		if err == nil {
			return c, nil
		}
		select {
		case end := <-m.ended:
			m.ended <- end
			return nil, errors.New("the agent has ended")
		case <-ctx.Done():
			return nil, err
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// stop ends the agent by SIGTERM and returns its result.
func (m *machine) stop() error {
	m.cmd.Process.Signal(syscall.SIGTERM)
	return <-m.ended
}

// gaveUp waits for an agent that cannot continue, and returns its error; nil if it continues.
func (m *machine) gaveUp() error {
	select {
	case err := <-m.ended:
		return err
	case <-time.After(time.Minute):
		m.cmd.Process.Kill()
		<-m.ended
		return nil
	}
}

// call calls the agent as the plugin does.
func (m *machine) call(kind cniframe.Kind, request, answer any) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := m.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return cniframe.Call(ctx, c, kind, request, answer)
}

func attachment(n int) cniframe.Attachment {
	return cniframe.Attachment{ContainerID: fmt.Sprintf("c%d", n), IfName: "eth0"}
}

func (m *machine) add(n int) ([]string, error) {
	var r cniframe.AddResponse
	err := m.call(cniframe.Add, &cniframe.AddRequest{Attachment: attachment(n), Netns: m.netns(n), PodNamespace: "shop", PodName: fmt.Sprintf("web-%d", n)}, &r)
	return r.Addresses, err
}

func (m *machine) del(n int) error {
	return m.call(cniframe.Del, &cniframe.DelRequest{Attachment: attachment(n)}, nil)
}

func (m *machine) check(n int) error {
	return m.call(cniframe.Check, &cniframe.CheckRequest{Attachment: attachment(n)}, nil)
}

func (m *machine) gc(valid []int) error {
	q := &cniframe.GCRequest{}
	for _, n := range valid {
		q.Valid = append(q.Valid, attachment(n))
	}
	return m.call(cniframe.GC, q, nil)
}

// traces lists the attachments and the records, by container.
func (m *machine) traces() (attached, recorded []string) {
	m.t.Helper()
	all, err := (&dirBackend{dir: filepath.Join(m.dir, "datapath")}).Endpoints(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, i := range all {
		attached = append(attached, fmt.Sprint(i.ID, i.Problems))
	}
	store, err := endpoint.Open(filepath.Join(m.dir, "state", "endpoints"))
	if err != nil {
		m.t.Fatal(err)
	}
	records, problems, err := store.Load()
	if err != nil || len(problems) > 0 {
		m.t.Fatal(err, problems)
	}
	for _, r := range records {
		recorded = append(recorded, fmt.Sprint(r.ID(), "[]"))
		if r.State != endpoint.Ready {
			m.t.Errorf("record of %s is in state %s", r.ID(), r.State)
		}
	}
	slices.Sort(attached)
	slices.Sort(recorded)
	return attached, recorded
}

// scenario attaches three pods and detaches one, and returns the answers.
func (m *machine) scenario() map[int][]string {
	answered := make(map[int][]string)
	for n := range 2 {
		if ips, err := m.add(n); err == nil {
			answered[n] = ips
		}
	}
	_ = m.del(0) // may be gone, whether or not the request was answered
	delete(answered, 0)
	if ips, err := m.add(2); err == nil {
		answered[2] = ips
	}
	return answered
}

// killed runs the scenario until the agent kills itself at a step, and reports whether it did.
func (m *machine) killed(at int) (answered map[int][]string, killed bool) {
	m.t.Helper()
	m.start(at)
	answered = m.scenario()
	err := m.stop()
	if err != nil && !strings.Contains(err.Error(), "killed") {
		m.t.Fatalf("agent ended with %v\n%s", err, m.log.String())
	}
	return answered, err != nil
}

// recovers starts an agent on the state of a killed one. It must still have everything that was
// answered and, after GC, nothing else. last runs before the agent stops.
func (m *machine) recovers(at int, answered map[int][]string, last func()) {
	m.t.Helper()
	m.start(0)
	if err := m.gc(slices.Sorted(maps.Keys(answered))); err != nil {
		m.t.Errorf("kill at step %d: GC: %v", at, err)
	}
	for n, ips := range answered {
		if again, err := m.add(n); err != nil || !slices.Equal(again, ips) {
			m.t.Errorf("kill at step %d: pod %d has %v, %v, was answered %v", at, n, again, err, ips)
		}
		if err := m.check(n); err != nil {
			m.t.Errorf("kill at step %d: CHECK %d: %v", at, n, err)
		}
	}
	last()
	if err := m.stop(); err != nil {
		m.t.Errorf("kill at step %d: agent ended with %v", at, err)
	}
	if m.t.Failed() {
		m.t.Fatal(m.log.String())
	}
}
