// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/doctor"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/kube"
)

func (e env) doctorCommand() *cobra.Command {
	cfg := doctor.Config{Root: "/", CNIBinDir: "/opt/cni/bin", CNIConfDir: "/etc/cni/net.d"}
	if runtime.GOOS == "windows" {
		cfg.Root, cfg.CNIBinDir, cfg.CNIConfDir = "", `C:\Program Files\containerd\cni\bin`, `C:\Program Files\containerd\cni\conf`
	}
	var output, agent, kubeconfig, node string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look whether Isthmus can work on this node, and what to do",
		Long: `Look at this node for what keeps Isthmus from working, or from enforcing what it
should: kernel or Windows build, mounts, uplink, ports, what other networks have
left, settings of kube-proxy. In the agent's pod, or with --kubeconfig, also what
the agent's credentials are good for. It needs no agent and changes nothing. Exit status
0 if there is no error, 1 if there is one, 2 if the command line is not right.`,
		Args: noArgs,
		RunE: answering(func(c *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: give text or json", output)
			}
			for name, port := range map[string]int{"vxlan-port": cfg.VXLANPort, "metrics-port": cfg.MetricsPort} {
				if port < 1 || port > 65535 {
					return fmt.Errorf("--%s %d: give a port from 1 to 65535", name, port)
				}
			}
			cfg.AgentRuns = e.answers(c.Context(), agent)
			if kubeconfig != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
				cfg.Confined = func(ctx context.Context) (bool, error) { return confined(ctx, kubeconfig, node) }
			}
			found := cfg.Examine(c.Context())
			var err error
			if output == "json" {
				err = encodeJSON(e.stdout, found)
			} else {
				err = writeFindings(e.stdout, found)
			}
			if err == nil && doctor.Worst(found) == doctor.Bad {
				err = errNo
			}
			return err
		}),
	}
	f := c.Flags()
	f.StringVarP(&output, "output", "o", "text", "text or json")
	f.StringVar(&agent, "socket", socket.Default, "the agent's socket, to see whether it runs")
	f.StringVar(&kubeconfig, "kubeconfig", "", "the agent's, if it has one; in its pod it needs none")
	f.StringVar(&node, "node-name", nodeName(), "name of this node's Node object; by default $NODE_NAME, or the host's name")
	f.StringVar(&cfg.Root, "root", cfg.Root, "where the host's files are, if this runs in a container")
	f.StringVar(&cfg.CNIBinDir, "cni-bin-dir", cfg.CNIBinDir, "the container runtime's directory of plugins")
	f.StringVar(&cfg.CNIConfDir, "cni-conf-dir", cfg.CNIConfDir, "the container runtime's directory of configurations")
	f.IntVar(&cfg.VXLANPort, "vxlan-port", 4789, "UDP port of the overlay")
	f.IntVar(&cfg.MetricsPort, "metrics-port", 9470, "TCP port of the agent's --http-address")
	return c
}

// nodeName is the name that the agent's pod is given, or the host's.
func nodeName() string {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name
	}
	host, _ := os.Hostname() // without one --node-name is needed
	return strings.ToLower(host)
}

// confined asks the API server what the agent's credentials are good for.
func confined(ctx context.Context, kubeconfig, node string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	source, err := kube.NewAPIServer(kube.DefaultAPIConfig(kubeconfig), slog.New(slog.DiscardHandler))
	if err != nil {
		return false, err
	}
	return source.Confined(ctx, node)
}

// answers reports whether an agent takes connections.
func (e env) answers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := e.dial(ctx, address)
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
