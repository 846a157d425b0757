// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"slices"
)

// Severity is the severity of a finding.
type Severity string

// The severities, ascending.
const (
	// Good: the check passed.
	Good Severity = "ok"
	// Unknown: the check could not run.
	Unknown Severity = "unknown"
	// Warning: Isthmus works, but with a surprising effect.
	Warning Severity = "warning"
	// Bad: Isthmus does not work here, or not as documented.
	Bad Severity = "error"
)

func (s Severity) rank() int { return slices.Index([]Severity{Good, Unknown, Warning, Bad}, s) }

// Finding is the result of one check.
type Finding struct {
	// Check names the check.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// What the check found.
	What string `json:"what"`
	// Why the finding matters, and what to Do; empty if it is good.
	Why string `json:"why,omitempty"`
	Do  string `json:"do,omitempty"`
}

// Worst is the severity of the worst finding.
func Worst(all []Finding) Severity {
	return slices.MaxFunc(append(all, Finding{Severity: Good}), func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) }).Severity
}

// Config holds paths and ports of the node.
type Config struct {
	// Root is the directory of the host's files, such as a mount in a container; usually
	// "/".
	Root string
	// CNIBinDir and CNIConfDir are the CNI directories of the container runtime.
	CNIBinDir, CNIConfDir string
	// Mode is full or policy; empty for policy if the CNI configuration has isthmus-cni behind another plugin, else
	// full.
	Mode string
	// VXLANPort is the UDP port of the overlay; MetricsPort is the TCP port of the agent.
	// AgentRuns: the agent answers, so that MetricsPort is in use by it.
	VXLANPort, MetricsPort int
	AgentRuns              bool
	// Uplink is the interface to other nodes (Linux); empty for that of the default route.
	Uplink string
	// Confined reports whether the API server prevents the agent's credentials from changing
	// labels of a Node; nil without such credentials.
	Confined func(context.Context) (bool, error)
}
