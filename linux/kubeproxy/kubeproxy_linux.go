// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"context"
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// The mechanisms that decide egress after DNAT.
const (
	byHooks = "netfilter"
	byRule  = "nftables"
)

// period is the interval between checks of the rule while the agent is idle. After a flush, egress to
// Services may be open for that long.
const period = time.Second

// Programs are the programs that decide egress after DNAT, and their hooks. A loader.DataPath implements
// them.
type Programs interface {
	// HookEgress attaches them to the netfilter hooks, and reports whether the kernel supports that.
	HookEgress() (bool, error)
	// UnhookEgress detaches them from there.
	UnhookEgress() error
	// AuditHooks returns the hooks without a program.
	AuditHooks() ([]loader.Finding, error)
	// PinFilters pins them for rules. OlderFilters returns the pins of an older layout, if it is in use.
	PinFilters() (loader.Filters, error)
	OlderFilters() loader.Filters
}

// Egress keeps the programs attached that decide egress after DNAT.
type Egress struct {
	programs Programs
	host     dataplane.Host
	onlyRule bool
	// mode is the mechanism in use.
	mode string
	due  time.Time // time of the next check
}

var (
	_ dataplane.Component = (*Egress)(nil)
	_ dataplane.Repairer  = (*Egress)(nil)
)

// New returns the component; Attach starts it. onlyRule makes it use the rule even if the kernel supports
// programs on the netfilter hooks.
func New(programs Programs, onlyRule bool, host dataplane.Host) *Egress {
	return &Egress{programs: programs, onlyRule: onlyRule, host: host}
}

// Attach attaches the programs, before any program leaves a verdict to them. It uses the netfilter hooks
// if the kernel supports programs there, otherwise an nftables rule.
func (e *Egress) Attach() error {
	hooked := false
	var err error
	if !e.onlyRule {
		hooked, err = e.programs.HookEgress()
	}
	if err != nil {
		return err
	}
	older := e.programs.OlderFilters()
	if hooked {
		e.mode = byHooks
		if older != (loader.Filters{}) {
			return nil // the older programs leave verdicts to the rule
		}
		return DropRule()
	}
	e.mode = byRule
	filters, err := e.programs.PinFilters()
	if err != nil {
		return err
	}
	if err := SetRule(pinsByChain(filters, older)); err != nil {
		return fmt.Errorf("egress to Services cannot be enforced: it needs Linux 6.4 or an nftables rule: %w", err)
	}
	return e.programs.UnhookEgress()
}

// pinsByChain returns the pins that each chain of the rule calls.
func pinsByChain(all ...loader.Filters) map[string][]string {
	pins := make(map[string][]string)
	for _, f := range all {
		for chain, pin := range map[string]string{"prerouting": f.PreRouting, "forward": f.Forward, "input": f.LocalIn, "output": f.LocalOut} {
			if pin != "" {
				pins[chain] = append(pins[chain], pin)
			}
		}
	}
	return pins
}

// Lost reports whether another process flushed the rule.
func (e *Egress) Lost() (bool, error) {
	if e.mode != byRule {
		return false, nil
	}
	has, err := HasRule()
	return !has, err
}

// Ensure adds the rule again if another process flushed it. The Backend calls it before it attaches
// programs to a pod.
func (e *Egress) Ensure() error {
	e.due = time.Now().Add(period)
	lost, err := e.Lost()
	if err != nil || !lost {
		return err
	}
	e.host.Log.Warn("another process flushed the nftables rule that decides egress to Services; it is added again")
	if err := e.Attach(); err != nil {
		return err
	}
	e.host.Repaired("add the nftables rule that decides egress to Services")
	return nil
}

// Apply does nothing: the programs read the policy of the pods.
func (e *Egress) Apply(context.Context, *model.State) ([]model.Unsupported, error) { return nil, nil }

// Sync implements dataplane.Component.
func (e *Egress) Sync(_ context.Context, now time.Time) error {
	if now.After(e.due) {
		return e.Ensure()
	}
	return nil
}

// Problems returns nil: a failure is an error of Sync or of the attachment of a pod.
func (e *Egress) Problems() []string { return nil }

// PathModes names the mechanism.
func (e *Egress) PathModes() []dataplane.PathMode {
	return []dataplane.PathMode{{Part: "services", Mode: e.mode, Count: 1}}
}

// Audit implements dataplane.Auditor.
func (e *Egress) Audit(context.Context, *model.State) ([]dataplane.Drift, error) {
	if e.mode == byHooks {
		found, err := e.programs.AuditHooks()
		return loader.Drifts(found), err
	}
	lost, err := e.Lost()
	if err != nil || !lost {
		return nil, err
	}
	return []dataplane.Drift{{Object: "nftables", Detail: "the rule that decides egress to Services is missing, or there are other rules"}}, nil
}

// Repair implements dataplane.Repairer.
func (e *Egress) Repair(ctx context.Context) error {
	found, err := e.Audit(ctx, nil)
	if err != nil || len(found) == 0 {
		return err
	}
	return e.Attach()
}

// Close does nothing: the programs stay attached.
func (e *Egress) Close() error { return nil }
