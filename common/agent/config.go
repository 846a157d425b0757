// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/agent/pool"
	"github.com/isthmus-net/isthmus/common/agent/rulemeter"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/ipam"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/common/report"
)

// Config configures an Agent.
type Config struct {
	// NodeName is the name of the Node object of this node.
	NodeName string
	// Version appears in status and metrics.
	Version string
	// Settings are the options of this agent that differ from their defaults, which a Bundle shows.
	// They must not contain secrets.
	Settings []string
	// RecordDir is the absolute path of the directory of endpoint records.
	RecordDir string
	// PodCIDRs, if set, replace those of the Node object.
	PodCIDRs []netip.Prefix
	// PolicyOnly makes the agent enforce policy on interfaces that another CNI plugin made. It then allocates
	// no addresses.
	PolicyOnly bool
	// Observe says which pods are observed. It must be ObserveNone without PolicyOnly.
	Observe model.Observation
	// Quarantine is the minimum time between release and reuse of an address.
	Quarantine time.Duration
	// ReservedHostPorts are ports of the node that pods cannot use as host ports.
	ReservedHostPorts []PortRange
	// EndpointPool is how many endpoints are prepared for pods to come, on data paths that can.
	EndpointPool pool.Size
	// Limits bounds what the compiler generates for the node.
	Limits compile.Limits
	// RuleMetrics is the maximum number of rules whose flows are metrics, at most rulemeter.MaxLimit; 0 for none.
	RuleMetrics int

	// AddWait bounds how long Add waits for its pod to appear in a snapshot.
	AddWait time.Duration
	// Debounce is how long a snapshot must stay the latest before the loop compiles it. MaxDebounce bounds
	// the delay while snapshots keep arriving.
	Debounce, MaxDebounce time.Duration
	// OpTimeout bounds every call of the Backend.
	OpTimeout time.Duration
	// RetryMin and RetryMax bound the back-off between retries of failed work.
	RetryMin, RetryMax time.Duration
	// AuditEvery is the interval between comparisons of installed with intended state; 0 disables them.
	AuditEvery time.Duration
	// CheckEvery is the interval of checks whether all pods are under policy. If AuditEvery is 0, these
	// checks report and repair nothing. 0 disables them.
	CheckEvery time.Duration
	// Flows configures what the agent does with flow events.
	Flows FlowsConfig
	// Stall is how long the loop may go without a heartbeat before it counts as stuck. It must be longer
	// than OpTimeout.
	Stall time.Duration

	// Open opens the data path. The node carries its name and all that is known about it.
	Open func(ctx context.Context, node model.Node) (dataplane.Backend, error)
	// OpenNeedsNode delays Open until the node's addresses and pod ranges are known.
	OpenNeedsNode bool

	// OtherEngines, if set, looks for policy engines of other projects on this node, and returns one line about each, with
	// the remedy. Beside one, an agent without endpoints does not call Open. The loop's goroutine calls it.
	OtherEngines func() ([]string, error)

	// SourceProblems returns the problems of the snapshot source. It may be nil. The agent calls it from
	// any goroutine.
	SourceProblems func() []string
	// SourceBehind returns why the snapshots may be out of date, or "" if they are current. It may be nil.
	// The agent calls it from any goroutine.
	SourceBehind func() string
	// Report, if set, receives the facts to report to the cluster. They do not include problems of the
	// source. The loop's goroutine calls it often, so it must not block.
	Report func(report.Facts)
	// Announce, if set, writes the data that other nodes need about this one to its Node object. The loop's
	// goroutine calls it often while the Node object lacks that data, so it must not block.
	Announce func(model.NodeInfo)
	// Publish, if set, adds to what the data path publishes about this node, for its Node object and pod ranges. It
	// returns a warning, or "". It must not block.
	Publish func(*model.Node, []netip.Prefix, model.NodeInfo) (model.NodeInfo, string)
	// Collectors are additional metrics that the agent serves with its own.
	Collectors []prometheus.Collector
	// Step, if set, is called on the loop's goroutine before each step with an external effect. The
	// argument is the name of the step.
	Step func(name string)
}

// FlowsConfig configures what the agent does with flow events.
type FlowsConfig struct {
	// Off disables flow events: the agent does not read them.
	Off bool
	observe.Config
}

// Defaults returns a Config without names, directories and functions; the caller sets those.
func Defaults() Config {
	return Config{
		Quarantine:  ipam.Defaults().Quarantine,
		Limits:      compile.DefaultLimits(),
		AddWait:     5 * time.Second,
		Debounce:    5 * time.Millisecond,
		MaxDebounce: 50 * time.Millisecond,
		OpTimeout:   10 * time.Second,
		RetryMin:    100 * time.Millisecond,
		RetryMax:    30 * time.Second,
		AuditEvery:  time.Minute,
		CheckEvery:  5 * time.Second,
		Flows:       FlowsConfig{Config: observe.Config{Keep: 2048}},
		Stall:       30 * time.Second,
	}
}

// Validate reports everything that is wrong with the Config.
func (c Config) Validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("node name is empty: set it to the name of this node's Node object"))
	}
	if c.RecordDir == "" {
		errs = append(errs, errors.New("record directory is empty: name an absolute path"))
	}
	if c.Open == nil {
		errs = append(errs, errors.New("no function opens the data path: set Open"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"add wait", c.AddWait}, {"debounce", c.Debounce}, {"max debounce", c.MaxDebounce}, {"operation timeout", c.OpTimeout},
		{"retry min", c.RetryMin}, {"retry max", c.RetryMax}, {"stall", c.Stall},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: use a duration above 0", d.name, d.value))
		}
	}
	if c.RetryMax < c.RetryMin {
		errs = append(errs, fmt.Errorf("retry max %s is below retry min %s", c.RetryMax, c.RetryMin))
	}
	if c.MaxDebounce < c.Debounce {
		errs = append(errs, fmt.Errorf("max debounce %s is below debounce %s", c.MaxDebounce, c.Debounce))
	}
	if c.Stall <= c.OpTimeout {
		errs = append(errs, fmt.Errorf("stall %s must be longer than the operation timeout %s", c.Stall, c.OpTimeout))
	}
	if c.AuditEvery < 0 {
		errs = append(errs, fmt.Errorf("audit interval %s is negative: use 0 to disable audits", c.AuditEvery))
	}
	if c.CheckEvery < 0 {
		errs = append(errs, fmt.Errorf("check interval %s is negative: use 0 to disable checks", c.CheckEvery))
	}
	if c.Flows.Keep < 0 {
		errs = append(errs, fmt.Errorf("flow events to keep %d is negative: use 0 or more", c.Flows.Keep))
	}
	if c.RuleMetrics < 0 || c.RuleMetrics > rulemeter.MaxLimit {
		errs = append(errs, fmt.Errorf("rules with metrics %d: use 0 to %d", c.RuleMetrics, rulemeter.MaxLimit))
	}
	if c.Quarantine < 0 {
		errs = append(errs, fmt.Errorf("quarantine %s is negative: use 0 or more", c.Quarantine))
	}
	if len(c.PodCIDRs) > 0 {
		if err := (ipam.Config{Prefixes: c.PodCIDRs}).Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
