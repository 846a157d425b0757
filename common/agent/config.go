// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/ipam"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/common/report"
)

// Config says what an Agent works with.
type Config struct {
	// NodeName is the name of the Node object of this node.
	NodeName string
	// Version is shown in status and metrics.
	Version string
	// RecordDir is where the endpoint records are, an absolute path.
	RecordDir string
	// PodCIDRs, if set, are used instead of those of the Node object.
	PodCIDRs []netip.Prefix
	// Quarantine is how long a released address is not used again.
	Quarantine time.Duration
	// ReservedHostPorts are ports of the node that no pod gets.
	ReservedHostPorts []PortRange
	// Limits bounds what is compiled for the node.
	Limits compile.Limits

	// AddWait bounds how long Add waits for its pod to be known.
	AddWait time.Duration
	// Settle is how long a snapshot must have stayed the latest before it is
	// compiled; MaxSettle bounds the delay when snapshots keep coming.
	Settle, MaxSettle time.Duration
	// OpTimeout bounds every call of the Backend.
	OpTimeout time.Duration
	// RetryMin and RetryMax bound the delay before failed work is tried again.
	RetryMin, RetryMax time.Duration
	// AuditEvery is how often what is installed is compared with what is
	// intended; 0 never.
	AuditEvery time.Duration
	// Flows says what is done with what the data path tells of single flows.
	Flows FlowsConfig
	// Stall is how long the loop may be silent before it counts as stuck. It
	// must be longer than OpTimeout.
	Stall time.Duration
	// StopTimeout bounds how long Serve waits for requests when it stops.
	StopTimeout time.Duration

	// Open opens the data path. The node carries the name and whatever else is
	// known.
	Open func(ctx context.Context, node model.Node) (dataplane.Backend, error)
	// OpenNeedsNode delays Open until the node's addresses and pod ranges are
	// known.
	OpenNeedsNode bool

	// SourceProblems tells what is wrong with the source of the snapshots; it
	// is called from any goroutine and may be nil.
	SourceProblems func() []string
	// SourceBehind tells why the snapshots may be out of date; empty if they are
	// not. It is called from any goroutine and may be nil.
	SourceBehind func() string
	// Report, if set, is given what is to be said to the cluster, on the loop's
	// goroutine and often; it must not block. Problems of the source are not in it.
	Report func(report.Facts)
	// Announce, if set, writes what other nodes have to know of this one to its
	// Node object. It is called on the loop's goroutine and often, while that does
	// not say it; it must not block.
	Announce func(model.Announcement)
	// Collectors are metrics of others that are served with the agent's own.
	Collectors []prometheus.Collector
	// Step, if set, is called before each step of the loop that can be seen
	// from outside, by its name, on the loop's goroutine.
	Step func(name string)
}

// Defaults returns a Config in which the names, directories and functions are
// missing.
func Defaults() Config {
	return Config{
		Quarantine:  ipam.Defaults().Quarantine,
		Limits:      compile.DefaultLimits(),
		AddWait:     5 * time.Second,
		Settle:      5 * time.Millisecond,
		MaxSettle:   50 * time.Millisecond,
		OpTimeout:   10 * time.Second,
		RetryMin:    100 * time.Millisecond,
		RetryMax:    30 * time.Second,
		AuditEvery:  time.Minute,
		Flows:       FlowsConfig{Keep: 2048},
		Stall:       30 * time.Second,
		StopTimeout: 10 * time.Second,
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
		errs = append(errs, errors.New("there is no way to open the data path"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"add wait", c.AddWait}, {"settle", c.Settle}, {"max settle", c.MaxSettle}, {"operation timeout", c.OpTimeout},
		{"retry min", c.RetryMin}, {"retry max", c.RetryMax}, {"stall", c.Stall}, {"stop timeout", c.StopTimeout},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: use a duration above 0", d.name, d.value))
		}
	}
	if c.RetryMax < c.RetryMin {
		errs = append(errs, fmt.Errorf("retry max %s is below retry min %s", c.RetryMax, c.RetryMin))
	}
	if c.MaxSettle < c.Settle {
		errs = append(errs, fmt.Errorf("max settle %s is below settle %s", c.MaxSettle, c.Settle))
	}
	if c.Stall <= c.OpTimeout {
		errs = append(errs, fmt.Errorf("stall %s must be longer than the operation timeout %s", c.Stall, c.OpTimeout))
	}
	if c.AuditEvery < 0 {
		errs = append(errs, fmt.Errorf("audit interval %s is negative: use 0 to switch it off", c.AuditEvery))
	}
	if c.Flows.Keep < 0 {
		errs = append(errs, fmt.Errorf("flow events to keep %d is negative: use 0 or more", c.Flows.Keep))
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
