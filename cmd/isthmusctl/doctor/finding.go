// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"slices"
)

// Severity says how bad a finding is.
type Severity string

// The severities, from the best.
const (
	// Good: looked at, and as it should be.
	Good Severity = "ok"
	// Unknown: it could not be looked at.
	Unknown Severity = "unknown"
	// Warning: works, but something may surprise.
	Warning Severity = "warning"
	// Bad: Isthmus does not work here, or not as it promises.
	Bad Severity = "error"
)

func (s Severity) rank() int { return slices.Index([]Severity{Good, Unknown, Warning, Bad}, s) }

// Finding is the result of one look.
type Finding struct {
	// Check names what was looked at.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// What was found.
	What string `json:"what"`
	// Why it matters, and what to Do; empty if it is good.
	Why string `json:"why,omitempty"`
	Do  string `json:"do,omitempty"`
}

// Worst is the severity of the worst finding.
func Worst(all []Finding) Severity {
	return slices.MaxFunc(append(all, Finding{Severity: Good}), func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) }).Severity
}

// Config says where on the node things are.
type Config struct {
	// Root is the directory under which the host's files are, such as a mount
	// in a container; usually "/".
	Root string
	// CNIBinDir and CNIConfDir are the container runtime's directories.
	CNIBinDir, CNIConfDir string
	// VXLANPort is the UDP port of the overlay, MetricsPort the TCP port of the
	// agent. AgentRuns tells that the agent answers, so that the latter is its.
	VXLANPort, MetricsPort int
	AgentRuns              bool
	// Confined reports whether the API server keeps the agent's credentials from
	// changing labels of a Node; nil without such credentials.
	Confined func(context.Context) (bool, error)
}
