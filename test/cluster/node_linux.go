// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/wine"
)

// Node is one node.
type Node struct {
	cluster  *Cluster
	Number   int
	Name     string
	OS       model.OS
	NS       *netns.NS
	Dir      string
	PodCIDRs []netip.Prefix
	segment  int
	// moved are the addresses of the node after Readdress.
	moved  []netip.Prefix
	agent  *exec.Cmd
	exited chan error
	// OwnConf is the path of a configuration of another CNI that the node's runtime has itself; "" if it reads ConfDir.
	OwnConf string
	// machine is the Windows machine of a node under Wine.
	machine *wine.Machine
}

// Addresses returns the addresses of the node itself.
func (n *Node) Addresses() []netip.Addr { return addressesOf(n.underlay()) }

func (n *Node) underlay() []netip.Prefix {
	if n.moved != nil {
		return n.moved
	}
	return n.cluster.families(underlay(n.Number, n.segment))
}

func addressesOf(all []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, p := range all {
		out = append(out, p.Addr())
	}
	return out
}

// Socket is the path of the agent's socket.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "agent.sock") }

// Ctl returns an isthmusctl command that queries the agent of the node.
func (n *Node) Ctl(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(n.cluster.cfg.Bin, "isthmusctl"), append(args, "--socket", n.Socket())...)
}

// Log is the path of the agent's log.
func (n *Node) Log() string { return filepath.Join(n.Dir, "agent.log") }

// HTTP is the address of the agent's metrics, in the node's namespace.
const HTTP = "127.0.0.1:9470"

func (n *Node) prepare() error {
	if err := os.MkdirAll(n.Dir, 0o700); err != nil {
		return err
	}
	var err error
	if n.NS, err = netns.Prepared(filepath.Join(n.cluster.cfg.Dir, "ns", n.Name)); err != nil {
		return err
	}
	if err := n.cluster.fabric.connect(n); err != nil {
		return err
	}
	// A new namespace may inherit the settings of this machine. Neither a Windows nor a Linux host forwards
	// before an agent turns it on.
	return n.NS.Do(netns.StopForwarding)
}

// Hardware returns the MAC address of a Windows node's adapter.
func (n *Node) Hardware() model.MAC { return model.MAC{0x00, 0x15, 0x5d, 0x00, 0x00, byte(n.Number)} }

// nodeInfo returns the annotations of the Node object of a Windows node. An agent that watches a directory
// cannot write them.
func (n *Node) nodeInfo() model.NodeInfo {
	switch {
	case n.OS != model.Windows, n.cluster.cfg.OtherCNI != "":
		return model.NodeInfo{}
	case n.cluster.cfg.Overlay:
		return model.NodeInfo{Fabric: "vxlan", VTEP: n.Hardware()}
	}
	return model.NodeInfo{Fabric: "routes"}
}

// Start starts the agent, with the state of an earlier one.
func (n *Node) Start() error {
	from := []string{"--manifests", n.cluster.Manifests.dir}
	if n.cluster.kubeconfig != "" {
		from = []string{"--kubeconfig", n.cluster.kubeconfig}
	}
	args := append(from, "--node-name", n.Name, "--http-address", HTTP, "--log-level", "debug")
	own := []string{"--state-dir", filepath.Join(n.Dir, "state"), "--socket", n.Socket()}
	switch {
	case n.machine != nil:
		n.agent = n.executable(args)
	case n.OS == model.Windows:
		n.agent = exec.Command(filepath.Join(n.cluster.cfg.Bin, "winnode"), slices.Concat(args, own, n.windowsFlags())...)
	default:
		args = slices.Concat(args, own, []string{"--bpffs", filepath.Join(n.cluster.BPFFS(), n.Name)}, n.podNetworkFlags(),
			n.cluster.cfg.AgentFlags, n.cluster.cfg.NodeFlags[n.Name])
		n.agent = exec.Command(filepath.Join(n.cluster.cfg.Bin, "isthmus-agent"), args...)
	}
	log, err := os.OpenFile(n.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	n.agent.Stdout, n.agent.Stderr = log, log
	n.agent.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // only the demo receives Ctrl-C, and then stops the agents in order
	if err := n.NS.Do(n.agent.Start); err != nil {
		return fmt.Errorf("start %s: %w", n.agent.Path, err)
	}
	n.exited = make(chan error, 1)
	go func(cmd *exec.Cmd, exited chan error) { exited <- cmd.Wait() }(n.agent, n.exited)
	return os.WriteFile(filepath.Join(n.Dir, "agent.pid"), []byte(strconv.Itoa(n.agent.Process.Pid)), 0o600)
}

// podNetworkFlags returns the flags of the node's network: the uplink, or those that chain the plugin to another
// CNI.
func (n *Node) podNetworkFlags() []string {
	if n.cluster.cfg.OtherCNI == "" {
		return []string{"--uplink", "eth0"}
	}
	if n.OwnConf != "" {
		return nil // the runtime reads no directory
	}
	return n.cniFlags()
}

func (n *Node) cniFlags() []string {
	return []string{"--cni-bin-dir", n.cluster.cfg.OtherCNI, "--cni-conf-dir", n.ConfDir()}
}

// Records is the directory of the agent's records of pods.
func (n *Node) Records() string {
	if n.machine != nil {
		return filepath.Join(n.machine.Drive(), "ProgramData", "isthmus", "endpoints")
	}
	return filepath.Join(n.Dir, "state", "endpoints")
}

// PID is the process ID of the agent.
func (n *Node) PID() int { return n.agent.Process.Pid }

// Readdress gives the node other addresses on its segment. WriteNodes publishes them.
func (n *Node) Readdress(host int) error {
	was := n.underlay()
	n.moved = n.cluster.families(onSegment(n.segment, host))
	err := n.NS.Do(func() error {
		if err := netns.RemoveAddresses("eth0", was...); err != nil {
			return err
		}
		if err := netns.AddAddresses("eth0", n.moved...); err != nil {
			return err
		}
		return n.defaults()
	})
	return errors.Join(err, n.cluster.fabric.reach(n))
}

// Uninstall runs the agent's command that removes everything from a node.
func (n *Node) Uninstall() (output string, err error) {
	if n.machine != nil {
		return n.uninstallUnderWine()
	}
	cmd := exec.Command(filepath.Join(n.cluster.cfg.Bin, "isthmus-agent"), "uninstall", "--state-dir", filepath.Join(n.Dir, "state"),
		"--socket", n.Socket(), "--bpffs", filepath.Join(n.cluster.BPFFS(), n.Name))
	if n.cluster.cfg.OtherCNI != "" {
		cmd.Args = append(cmd.Args, n.podNetworkFlags()...)
	}
	var out []byte
	err = n.NS.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	return string(out), err
}

// Kill ends the agent by SIGKILL.
func (n *Node) Kill() error {
	if err := n.agent.Process.Kill(); err != nil {
		return err
	}
	<-n.exited
	n.agent = nil
	return nil
}

// Stop ends the agent by SIGTERM, and kills it if it does not end.
func (n *Node) Stop() error { return n.stop() }

// stop sends a signal to the agent, and kills it if it does not end.
func (n *Node) stop() error {
	if n.agent == nil {
		return nil
	}
	defer func() { n.agent = nil }()
	sig := syscall.SIGTERM
	if n.machine != nil {
		sig = syscall.SIGINT // Wine translates SIGINT to Ctrl-C, and ignores SIGTERM
	}
	if err := n.agent.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-n.exited:
		return nil
	case <-time.After(10 * time.Second):
		return errors.Join(fmt.Errorf("agent of %s did not stop on %s", n.Name, sig), n.agent.Process.Kill())
	}
}

// killByFile ends the process that a pid file names, if that is an agent.
func killByFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || !strings.HasPrefix(string(name), "isthmus") && !strings.HasPrefix(string(name), "winnode") {
		return nil // the agent is gone, and another process has its ID
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop agent %d: %w", pid, err)
	}
	return nil
}

// waitReady polls the agent's readiness.
func (n *Node) waitReady(ctx context.Context) error {
	deadline := time.Now().Add(patience)
	for {
		select {
		case err := <-n.exited:
			n.agent = nil
			return fmt.Errorf("agent ended: %v\n%s", err, n.logTail())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		body, status, err := n.Get("/readyz")
		if err == nil && status == http.StatusOK {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("agent is not ready after %s: %v %s\n%s", patience, err, body, n.logTail())
		}
	}
}

// Get reads a page of the agent's HTTP server.
func (n *Node) Get(path string) (body string, status int, err error) {
	r, err := n.NS.HTTPClient(5 * time.Second).Get("http://" + HTTP + path)
	if err != nil {
		return "", 0, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), r.StatusCode, err
}

// OpenMetrics reads the metrics of the agent in the format that Prometheus asks for.
func (n *Node) OpenMetrics() (string, error) {
	r, err := http.NewRequest(http.MethodGet, "http://"+HTTP+"/metrics", nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	answer, err := n.NS.HTTPClient(5 * time.Second).Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return string(b), err
}

func (n *Node) logTail() string {
	b, _ := os.ReadFile(n.Log())
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}

// Status returns the status of the agent.
func (n *Node) Status(ctx context.Context) (*isthmusv1.GetNodeResponse, error) {
	if n.machine != nil {
		return n.statusUnderWine(ctx)
	}
	conn, err := grpc.NewClient("unix:"+socket.Inspection(n.Socket()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return isthmusv1.NewInspectClient(conn).GetNode(ctx, &isthmusv1.GetNodeRequest{})
}
