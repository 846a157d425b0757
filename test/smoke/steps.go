// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// host is a Windows host: its HNS, and what a container runtime does there.
type host interface {
	hns.Client
	// Release returns the version of Windows.
	Release() string
	// AddNamespace creates a network namespace and returns its GUID.
	AddNamespace() (string, error)
	RemoveNamespace(id string) error
}

// pods is how many pods the manifests have.
const pods = 8

// agentHTTP is the address of the agent's health.
const agentHTTP = "127.0.0.1:9479"

// smoke is one run.
type smoke struct {
	options
	host       host
	w          io.Writer
	report     *Report
	work       string // temporary directory
	namespaces []string
	pair       []string // endpoints that this program created
	agent      *exec.Cmd
	exited     chan error
}

func newSmoke(o options, h host, w io.Writer) *smoke {
	return &smoke{options: o, host: h, w: w,
		report: &Report{Program: version, Windows: h.Release(), Mode: o.mode, Time: time.Now().UTC(), Conformance: -1}}
}

// all runs every step. After a failure it only cleans up.
func (s *smoke) all(ctx context.Context) {
	if !s.step("look at the host", func() error { return s.look(ctx) }) {
		return // existing objects belong to others
	}
	steps := s.withAgent()
	if s.mode == "nat" {
		steps = s.withoutAgent()
	}
	for _, step := range steps {
		if !s.step(step.name, func() error { return step.do(ctx) }) && !step.answers {
			break
		}
	}
	// Cleaning up has a separate timeout, also after Ctrl-C.
	later, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	s.step("clean up", func() error { return s.clean(later) })
	s.step("nothing is left", func() error { return s.left(later) })
}

// task is a step that may fail.
type task struct {
	name string
	do   func(context.Context) error
	// answers: a failure is an answer about Windows, and the next steps run.
	answers bool
}

// withAgent are the steps on a network of the agent.
func (s *smoke) withAgent() []task {
	return []task{
		{name: "write manifests", do: s.prepare},
		{name: "create namespaces", do: s.makeNamespaces},
		{name: "create network", do: s.makeNetwork},
		{name: "start agent", do: s.startAgent},
		{name: "STATUS", do: func(ctx context.Context) error { return s.cni().GetStatusNetworkList(ctx, s.conf()) }},
		{name: "ADD and CHECK", do: s.attachPair},
		{name: "restart agent", do: s.restartAgent},
		{name: "CHECK after restart", do: s.checkPair},
		{name: "stop agent", do: func(context.Context) error { return s.stopAgent() }},
		{name: "isthmus-conformance", do: s.conformance, answers: true},
		{name: "start agent again", do: s.startAgent},
		{name: "DEL", do: func(ctx context.Context) error { return errors.Join(s.remove(ctx, 0), s.remove(ctx, 1)) }},
		{name: "measure ADD", do: s.measure},
		{name: "isthmusctl status", do: s.status},
		{name: "stop agent again", do: func(context.Context) error { return s.stopAgent() }},
		{name: "measure calls of HNS", do: s.measureCalls},
	}
}

// withoutAgent are the steps on a network of a type that the agent does not make.
func (s *smoke) withoutAgent() []task {
	return []task{
		{name: "write manifests", do: s.prepare},
		{name: "create namespaces", do: s.makeNamespaces},
		{name: "create network", do: s.makeNetwork},
		{name: "create endpoints", do: s.makePair},
		{name: "isthmus-conformance", do: s.conformance, answers: true},
		{name: "remove endpoints", do: s.removePair},
		{name: "measure calls of HNS", do: s.measureCalls},
	}
}

// step runs one step and records its result.
func (s *smoke) step(name string, do func() error) bool {
	began := time.Now()
	err := do()
	step := Step{Name: name, Seconds: time.Since(began).Seconds()}
	if err != nil {
		step.Error = err.Error()
		s.report.Failed++
	}
	s.report.Steps = append(s.report.Steps, step)
	fmt.Fprintf(s.w, "%6.1f s  %s%s\n", step.Seconds, name, strings.TrimSuffix(": "+step.Error, ": "))
	return err == nil
}

// look refuses hosts on which the run would change objects of others.
func (s *smoke) look(ctx context.Context) error {
	v, err := s.host.Version(ctx)
	if err != nil {
		return err
	}
	s.report.HNS = v.String()
	list, err := s.host.Networks(ctx)
	if err != nil {
		return err
	}
	for _, n := range list {
		if strings.EqualFold(n.Name, s.network) {
			return fmt.Errorf("network %s exists: remove it (isthmus-agent.exe uninstall --hns-network %s), or give another --network", s.network, s.network)
		}
	}
	for _, name := range []string{"isthmus-agent.exe", "isthmus-cni.exe", "isthmusctl.exe", "isthmus-conformance.exe"} {
		if _, err := os.Stat(filepath.Join(s.bin, name)); err != nil {
			return fmt.Errorf("find executable: %w: give --bin", err)
		}
	}
	return nil
}

// prepare writes the manifests of the agent: a node, pods, and a policy for two of them.
func (s *smoke) prepare(context.Context) (err error) {
	if s.work, err = os.MkdirTemp("", "isthmus-smoke"); err != nil {
		return err
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Node\nmetadata: {name: smoke}\nspec: {podCIDRs: [%s]}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", s.podCIDR, s.node)
	for i := range pods {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p%d, namespace: smoke, labels: {app: p%d}}\nspec: {nodeName: smoke, containers: [{name: c, image: none}]}\n", i, i)
	}
	b.WriteString("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p1, namespace: smoke}\nspec:\n" +
		"  podSelector: {matchLabels: {app: p1}}\n  ingress: [{from: [{podSelector: {matchLabels: {app: p0}}}], ports: [{port: 80}]}]\n")
	if err := os.Mkdir(filepath.Join(s.work, "manifests"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.work, "manifests", "all.yaml"), []byte(b.String()), 0o644)
}

func (s *smoke) makeNamespaces(context.Context) error {
	for range pods {
		id, err := s.host.AddNamespace()
		if err != nil {
			return err
		}
		s.namespaces = append(s.namespaces, id)
	}
	return nil
}

// makeNetwork creates the network on the adapter that the user names. The agent takes over
// a network of its type and ranges. Without a name the agent creates it.
func (s *smoke) makeNetwork(ctx context.Context) error {
	if s.adapter == "" && s.mode != "nat" {
		return nil
	}
	subnet := hns.Subnet{IPAddressPrefix: s.podCIDR.String(), Routes: []hns.Route{{NextHop: s.podCIDR.Addr().Next().String(), DestinationPrefix: "0.0.0.0/0"}}}
	n := hns.Network{Name: s.network, Type: hns.L2Bridge, Flags: hns.NonPersistent, SchemaVersion: hns.Schema2,
		Policies: []hns.Policy{hns.MakePolicy(hns.TypeNetAdapterName, hns.NetAdapterName{NetworkAdapterName: s.adapter})}}
	switch s.mode {
	case "nat":
		n.Type, n.Policies = "NAT", nil
	case "overlay":
		n.Type = hns.Overlay
		n.Policies = append(n.Policies, hns.MakePolicy(hns.TypeHostRoute, struct{}{}))
		subnet.Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: 4096})}
	}
	n.Ipams = []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}
	if _, err := s.host.CreateNetwork(ctx, n); err != nil {
		return fmt.Errorf("create %s network on --adapter %q: %w", s.mode, s.adapter, err)
	}
	return nil
}

// exe returns a call of one of the executables.
func (s *smoke) exe(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
}

func (s *smoke) startAgent(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(s.out, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// The agent outlives a timeout of ctx: cleaning up needs it.
	cmd := s.exe(context.WithoutCancel(ctx), "isthmus-agent.exe", "--node-name", "smoke", "--manifests",
		filepath.Join(s.work, "manifests"), "--state-dir", filepath.Join(s.work, "state"),
		"--http-address", agentHTTP, "--log-level", "debug", "--hns-network", s.network, "--hns-mode", s.mode, "--cluster-cidr",
		s.podCIDR.String(), "--quarantine", "0s", "--lock-timeout", "10s")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start isthmus-agent.exe: %w", err)
	}
	s.agent, s.exited = cmd, make(chan error, 1)
	go func(exited chan<- error) { exited <- cmd.Wait() }(s.exited)
	for {
		if r, err := http.Get("http://" + agentHTTP + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-s.exited:
			s.agent = nil
			return fmt.Errorf("isthmus-agent.exe ended (%v): see agent.log", err)
		case <-ctx.Done():
			return fmt.Errorf("isthmus-agent.exe is not ready: %w: see agent.log", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stopAgent kills the agent: policy in force must stay, and the next agent reads it.
func (s *smoke) stopAgent() error {
	if s.agent == nil {
		return nil
	}
	err := s.agent.Process.Kill()
	<-s.exited
	s.agent = nil
	return err
}

func (s *smoke) restartAgent(ctx context.Context) error {
	if err := s.stopAgent(); err != nil {
		return err
	}
	return s.startAgent(ctx)
}

// cni runs the plugin as container runtimes do.
func (s *smoke) cni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{s.bin}, filepath.Join(s.work, "cni"), nil)
}

func (s *smoke) conf() *libcni.NetworkConfigList {
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.1.0","name":"isthmus","plugins":[{"type":"isthmus-cni"}]}`))
	if err != nil {
		panic(err) // a constant
	}
	return list
}

func (s *smoke) runtime(i int) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: fmt.Sprintf("smoke-%d", i), NetNS: s.namespaces[i], IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "smoke"}, {"K8S_POD_NAME", fmt.Sprintf("p%d", i)}, {"K8S_POD_INFRA_CONTAINER_ID", fmt.Sprintf("smoke-%d", i)}}}
}

func (s *smoke) attach(ctx context.Context, i int) error {
	if _, err := s.cni().AddNetworkList(ctx, s.conf(), s.runtime(i)); err != nil {
		return fmt.Errorf("ADD of pod p%d: %w", i, err)
	}
	return nil
}

func (s *smoke) remove(ctx context.Context, i int) error {
	if err := s.cni().DelNetworkList(ctx, s.conf(), s.runtime(i)); err != nil {
		return fmt.Errorf("DEL of pod p%d: %w", i, err)
	}
	s.report.Deletes++
	return nil
}

func (s *smoke) attachPair(ctx context.Context) error {
	for i := range 2 {
		if err := s.attach(ctx, i); err != nil {
			return err
		}
		s.report.Adds++
	}
	return s.checkPair(ctx)
}

func (s *smoke) checkPair(ctx context.Context) error {
	for i := range 2 {
		if err := s.cni().CheckNetworkList(ctx, s.conf(), s.runtime(i)); err != nil {
			return fmt.Errorf("CHECK of pod p%d: %w", i, err)
		}
	}
	return nil
}
