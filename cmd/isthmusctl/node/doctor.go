// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/daemon/pages"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/doctor"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/kube/watch"
)

// defaultDoctor returns the paths that doctor checks.
func defaultDoctor() doctor.Config {
	if runtime.GOOS == "windows" {
		return doctor.Config{CNIBinDir: `C:\Program Files\containerd\cni\bin`, CNIConfDir: `C:\Program Files\containerd\cni\conf`}
	}
	return doctor.Config{Root: "/", CNIBinDir: "/opt/cni/bin", CNIConfDir: "/etc/cni/net.d"}
}

// useSettings takes over the settings of the running agent, each as --NAME=VALUE, but for those that the command line of doctor
// gives. The paths of an agent in a pod are those of its mounts, so one that does not exist here counts for nothing.
func useSettings(cfg *doctor.Config, settings []string, given func(flag string) bool) {
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(cfg.Root, path))
		return err == nil
	}
	if !given("mode") {
		cfg.Mode = "full"
	}
	for _, setting := range settings {
		name, value, _ := strings.Cut(strings.TrimPrefix(setting, "--"), "=")
		if given(name) || name == "http-address" && given("metrics-port") {
			continue
		}
		switch name {
		case "cni-bin-dir":
			if exists(value) {
				cfg.CNIBinDir = value
			}
		case "cni-conf-dir":
			if exists(value) {
				cfg.CNIConfDir = value
			}
		case "mode":
			cfg.Mode = value
		case "uplink":
			cfg.Uplink = value
		case "vxlan-port":
			cfg.VXLANPort, _ = strconv.Atoi(value) // the agent has checked it
		case "http-address":
			if _, port, err := net.SplitHostPort(value); err == nil {
				cfg.MetricsPort, _ = strconv.Atoi(port)
			}
		}
	}
}

func (e env) doctorCommand() *cobra.Command {
	cfg := defaultDoctor()
	all, timeout := &allNodes{}, 30*time.Second
	var output, agent, kubeconfig, node string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether Isthmus can work on this node, and print remedies",
		Long: `Check this node for problems that keep Isthmus from working or from enforcing
policies: kernel or Windows build, mounts, uplink, ports, remains of other
networks, settings of kube-proxy. In the agent's pod, or with --kubeconfig, also
check the permissions of the agent's credentials. The command needs no agent and
changes nothing. If an agent runs, what its flags say counts, unless a flag here
says something else. Exit status 0 if there is no error, 1 if there is one, 2 if the
command line is invalid. Beside another CNI (--mode policy) it names the network,
its version, and policy engines of other projects. --all-nodes runs it in the
agent pods of all nodes, with the settings of the pods.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := cli.CheckOutput(output, "text", "json", "yaml"); err != nil {
				return err
			}
			if err := all.check(c); err != nil {
				return err
			}
			if all.all {
				return e.doctorOfAll(c.Context(), all, timeout, kubeconfig, output)
			}
			if err := checkMode(cfg.Mode, runtime.GOOS); err != nil {
				return err
			}
			for name, port := range map[string]int{"vxlan-port": cfg.VXLANPort, "metrics-port": cfg.MetricsPort} {
				if port < 1 || port > 65535 {
					return fmt.Errorf("--%s %d: give a port from 1 to 65535", name, port)
				}
			}
			e.askSettings(c, agent, &cfg)
			if kubeconfig != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
				cfg.Confined = func(ctx context.Context) (bool, error) { return confined(ctx, kubeconfig, node) }
			}
			found := cfg.Examine(c.Context())
			var err error
			if output != "text" {
				err = cli.EncodeKind(e.Stdout, output, "DoctorReport", map[string]any{"findings": found})
			} else {
				err = writeFindings(e.Stdout, found)
			}
			if err == nil && doctor.Worst(found) == doctor.Bad {
				err = cli.ErrNo
			}
			return err
		}),
	}
	all.register(c)
	f := c.Flags()
	f.DurationVar(&timeout, "timeout", timeout, "with --all-nodes: how long to wait for each node")
	cli.RegisterOutput(c, &output, "text", "json", "yaml")
	f.StringVar(&agent, "socket", socket.Default, "the agent's socket, to check whether the agent runs")
	f.StringVar(&kubeconfig, "kubeconfig", "", "the agent's kubeconfig, if it has one; not needed in its pod. With --all-nodes: that of the user; default: the file that kubectl uses")
	f.StringVar(&node, "node-name", nodeName(), "name of this node's Node object")
	pages.SetDefault(f, "node-name", "$NODE_NAME, else the host name")
	f.StringVar(&cfg.Root, "root", cfg.Root, "directory of the host's files, if this runs in a container")
	f.StringVar(&cfg.CNIBinDir, "cni-bin-dir", cfg.CNIBinDir, "the container runtime's directory of CNI plugins")
	f.StringVar(&cfg.CNIConfDir, "cni-conf-dir", cfg.CNIConfDir, "the container runtime's directory of CNI configurations")
	f.StringVar(&cfg.Mode, "mode", "", "the agent's --mode; default: policy if isthmus-cni follows another plugin in the CNI configuration, else full")
	f.StringVar(&cfg.Uplink, "uplink", "", "the agent's --uplink (Linux)")
	f.IntVar(&cfg.VXLANPort, "vxlan-port", 4789, "UDP port of the overlay")
	f.IntVar(&cfg.MetricsPort, "metrics-port", 9470, "TCP port of the agent's --http-address")
	return c
}

// askSettings takes over the settings of the agent, if one runs.
func (e env) askSettings(c *cobra.Command, agent string, cfg *doctor.Config) {
	if cfg.AgentRuns = e.answers(c.Context(), agent); !cfg.AgentRuns {
		return
	}
	b, err := e.dump(c.Context(), &shared{socket: agent, timeout: agentAnswers}, &isthmusv1.DumpRequest{Policies: true})
	if err == nil {
		useSettings(cfg, b.About.Settings, c.Flags().Changed)
	}
}

// agentAnswers bounds how long doctor waits for the settings of the agent.
const agentAnswers = 5 * time.Second

// checkMode checks --mode for an operating system.
func checkMode(mode, goos string) error {
	switch mode {
	case "", "full", "policy":
		return nil
	case "observe":
		if goos == "windows" {
			return errors.New("--mode observe: agents on windows have the modes full and policy")
		}
		return nil
	}
	return fmt.Errorf("--mode %q: give full, policy or observe", mode)
}

// nodeName returns the name that the agent's pod receives, or the host name.
func nodeName() string {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name
	}
	host, _ := os.Hostname() // if there is none, --node-name is needed
	return strings.ToLower(host)
}

// confined queries the API server for the permissions of the agent's credentials.
func confined(ctx context.Context, kubeconfig, node string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	source, err := watch.NewAPIServer(watch.DefaultAPIConfig(kubeconfig), slog.New(slog.DiscardHandler))
	if err != nil {
		return false, err
	}
	return source.Confined(ctx, node)
}

// answers reports whether an agent accepts connections.
func (e env) answers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := e.Dial(ctx, address)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

func writeFindings(out io.Writer, found []doctor.Finding) error {
	counts := make(map[doctor.Severity]int)
	for _, f := range found {
		counts[f.Severity]++
		if _, err := fmt.Fprintf(out, "%-8s %s: %s\n", f.Severity, f.Check, f.What); err != nil {
			return err
		}
		if f.Severity != doctor.Good {
			fmt.Fprintf(out, "         why: %s\n         do:  %s\n", f.Why, f.Do)
		}
	}
	_, err := fmt.Fprintf(out, "doctor: ok=%d warnings=%d errors=%d unknown=%d\n",
		counts[doctor.Good], counts[doctor.Warning], counts[doctor.Bad], counts[doctor.Unknown])
	return err
}
