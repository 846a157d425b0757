// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/takeover"
)

// errNothingToRun is the answer of migrate run on Windows.
func errNothingToRun() error {
	return cli.Usagef("nothing needs running on a Windows node: its agent takes over the HNS network when it starts: follow the steps of isthmusctl migrate plan")
}

// errNothingToReverse is the answer of migrate rollback on Windows. An uninstallation would remove the network.
func errNothingToReverse() error {
	return cli.Usagef("no command has migrated this Windows node, so there is nothing to reverse: to go back, drain the node, stop the agent without isthmus-agent uninstall, "+
		"which would remove the HNS network, replace %s by the former CNI configuration, start flanneld, and uncordon the node", install.ConfName)
}

// planHNS reads HNS, and prints whether the agent can take over the network.
func (e env) planHNS(ctx context.Context, client hns.Client, o *options) error {
	ranges, err := parseRanges("pod-cidr", o.podCIDRs)
	if err != nil {
		return err
	}
	plan, err := takeover.Make(ctx, client, takeover.Options{From: o.from, Node: o.node, Network: o.hnsNetwork,
		Mode: windows.Mode(o.hnsMode), VNI: o.vni, PodCIDRs: ranges})
	if err != nil {
		return err
	}
	if o.output != "text" {
		err = cli.EncodeKind(e.Stdout, o.output, "MigrationPlan", describe(plan))
	} else {
		err = cli.Plain(e.Stdout, func(w io.Writer) error { writeHNS(w, plan); return nil })
	}
	if err == nil && len(plan.Reasons()) > 0 {
		return cli.ErrNo
	}
	return err
}

// hnsPlan is the answer for programs. Lists are never null.
type hnsPlan struct {
	From        string             `json:"from"`
	Node        string             `json:"node"`
	HNS         string             `json:"hns"`
	Network     hnsNetwork         `json:"network"`
	Endpoints   []hnsEndpoint      `json:"endpoints"`
	Differences []windows.Mismatch `json:"differences"`
	Reasons     []string           `json:"reasons"`
	Notes       []string           `json:"notes"`
	Steps       []string           `json:"steps"`
	AgentFlags  []string           `json:"agentFlags"`
	ChartValues []string           `json:"chartValues"`
}

type hnsNetwork struct {
	Name   string   `json:"name"`
	ID     string   `json:"id"`
	Type   string   `json:"type"`
	Ranges []string `json:"ranges"`
	VNI    uint32   `json:"vni,omitempty"`
}

// hnsEndpoint is the endpoint of a pod. Attached reports whether it is in a namespace.
type hnsEndpoint struct {
	Name      string   `json:"name"`
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"`
	Attached  bool     `json:"attached"`
}

func describe(p *takeover.Plan) hnsPlan {
	n := &p.Found.Network
	a := hnsPlan{From: p.From, Node: p.Node, HNS: p.Found.Version.String(), Network: hnsNetwork{Name: n.Name, ID: n.ID, Type: string(n.Type), Ranges: []string{}},
		Endpoints: []hnsEndpoint{}, Differences: append([]windows.Mismatch{}, p.Differences()...), Reasons: append([]string{}, p.Reasons()...),
		Notes: append([]string{}, p.Notes()...), Steps: append([]string{}, p.Steps()...), AgentFlags: p.AgentFlags(), ChartValues: p.ChartValues()}
	for _, s := range n.Subnets() {
		a.Network.Ranges = append(a.Network.Ranges, s.IPAddressPrefix)
		a.Network.VNI = max(a.Network.VNI, s.VNI())
	}
	for _, e := range p.Pods {
		pod := hnsEndpoint{Name: e.Name, ID: e.ID, Addresses: []string{}, Attached: e.HostComputeNamespace != ""}
		for _, c := range e.IPConfigurations {
			pod.Addresses = append(pod.Addresses, c.IPAddress)
		}
		a.Endpoints = append(a.Endpoints, pod)
	}
	return a
}

func writeHNS(w io.Writer, p *takeover.Plan) {
	a := describe(p)
	fmt.Fprintf(w, "node %s: HNS %s, network %s (%s), type %s, ranges %s", a.Node, a.HNS, a.Network.Name, a.From, a.Network.Type, strings.Join(a.Network.Ranges, " "))
	if a.Network.VNI != 0 {
		fmt.Fprintf(w, ", VNI %d", a.Network.VNI)
	}
	fmt.Fprintf(w, "; endpoints of pods: %d; steps: %d\n", len(a.Endpoints), len(a.Steps))
	if len(a.Reasons) == 0 {
		fmt.Fprintln(w, "the agent can take over the network as it is, with", strings.Join(a.AgentFlags, " "))
	} else {
		fmt.Fprintln(w, "the agent cannot take over the network as it is:")
	}
	for _, r := range a.Reasons {
		fmt.Fprintln(w, "  -", r)
	}
	for _, pod := range a.Endpoints {
		fmt.Fprintf(w, "endpoint %s (%s)%s must be gone: it would have no policy\n", pod.Name, strings.Join(pod.Addresses, " "), unattached(pod))
	}
	for _, note := range a.Notes {
		fmt.Fprintln(w, note)
	}
	for i, s := range a.Steps {
		fmt.Fprintf(w, "%4d  %s\n", i+1, s)
	}
}

// unattached says that no pod runs with an endpoint.
func unattached(e hnsEndpoint) string {
	if e.Attached {
		return ""
	}
	return ", in no namespace,"
}
