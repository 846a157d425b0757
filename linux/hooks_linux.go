// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// The programs of an endpoint are on the clsact hooks of its interface at
// first: that takes no time. Attaching a tcx link waits for grace periods of
// the kernel, but it is pinned and no other tool removes it by accident; where
// the kernel has it, Idle moves one endpoint after the other. While both are
// there a packet is decided twice, the same way.

func (b *Backend) classifiers() link.Classifiers {
	return link.Classifiers{FromPod: b.path.Program(model.Egress).FD(), ToPod: b.path.Program(model.Ingress).FD()}
}

// By what egress is decided behind the translation.
const (
	byHooks = "netfilter"
	byRule  = "nftables"
)

// hookEgress makes sure that egress is decided behind the translation before
// any program leaves a decision to be made there: at the hooks of netfilter
// where they take programs, else by a rule of nftables.
func (b *Backend) hookEgress() error {
	hooked := false
	var err error
	if !b.cfg.EgressByRule {
		hooked, err = b.path.HookEgress()
	}
	if err != nil {
		return err
	}
	older := b.path.OlderFilters()
	if hooked {
		b.egress = byHooks
		if older != (loader.Filters{}) {
			return nil // its programs leave decisions to the rule
		}
		return link.DropEgressFilter()
	}
	b.egress = byRule
	filters, err := b.path.PinFilters()
	if err != nil {
		return err
	}
	pins := make(map[string][]string)
	for _, f := range []loader.Filters{filters, older} {
		for chain, pin := range map[string]string{"forward": f.Forward, "input": f.LocalIn, "output": f.LocalOut} {
			if pin != "" {
				pins[chain] = append(pins[chain], pin)
			}
		}
	}
	if err := link.SetEgressFilter(pins); err != nil {
		return fmt.Errorf("egress to Services cannot be policed, which takes Linux 6.4 or a rule of nftables: %w", err)
	}
	return b.path.UnhookEgress()
}

// lostEgress reports whether somebody flushed the rule that decides egress.
func (b *Backend) lostEgress() (bool, error) {
	if b.egress != byRule {
		return false, nil
	}
	has, err := link.HasEgressFilter()
	return !has, err
}

// mendEgress puts the rule back if somebody flushed it.
func (b *Backend) mendEgress() error {
	b.egressDue = time.Now().Add(lookAtEgress)
	lost, err := b.lostEgress()
	if err != nil || !lost {
		return err
	}
	b.log.Warn("somebody flushed the rule of nftables that decides egress to Services; it is put back")
	if err := b.hookEgress(); err != nil {
		return err
	}
	b.mended.Add(1)
	return nil
}

// lookAtEgress is for how long egress to Services may be open after somebody has
// flushed the rule that decides it, while the agent is idle.
const lookAtEgress = time.Second

// classify puts the programs on an interface that has no tcx links.
func (b *Backend) classify(name string, index int) error {
	if err := b.mendEgress(); err != nil {
		return err
	}
	if b.underOlder(index) {
		return nil
	}
	linked, err := b.path.Linked(name, index)
	if err != nil || linked {
		return err
	}
	return link.SetClassifiers(index, b.classifiers())
}

// renewClassifiers gives this build's programs to every interface without tcx
// links, each by one atomic exchange.
func (b *Backend) renewClassifiers() error {
	found, err := link.List()
	if err != nil {
		return err
	}
	for _, f := range found {
		if err := b.classify(f.Name, f.Index); err != nil {
			return err
		}
	}
	return nil
}

// policed reports whether both programs are on an interface, on either kind of
// hook.
func (b *Backend) policed(name string, index int) (bool, error) {
	if linked, err := b.path.Linked(name, index); err != nil || linked {
		return linked, err
	}
	if b.underOlder(index) {
		if linked, err := b.path.OlderLinked(name); err != nil || linked {
			return linked, err
		}
	}
	return link.HasClassifiers(index)
}

// Idle implements dataplane.Backend: it looks after the fabric; then it moves the
// programs of one endpoint to tcx links, which keeps the kernel's network lock
// for some 30 ms. It also looks after the uplinks and the rule for egress.
func (b *Backend) Idle(context.Context) (more bool, err error) {
	defer b.notePathModes()
	b.uplinks.tend()
	b.fabric.Tend(time.Now())
	b.ways.tend(time.Now())
	b.origins.tend(time.Now())
	if err := errors.Join(b.followUplink(), b.ports.tend(time.Now())); err != nil {
		return false, err
	}
	if time.Now().After(b.egressDue) {
		if err := b.mendEgress(); err != nil {
			return false, err
		}
	}
	if !b.tcx || len(b.specs) == len(b.linked) || b.path.Older() != "" {
		return false, nil
	}
	for id := range b.specs {
		if b.linked[id] {
			continue
		}
		name := link.HostName(id)
		index, err := link.Index(name)
		if err != nil {
			return false, err
		}
		b.step("link programs")
		if err := b.path.Attach(name, index); err != nil {
			return false, err
		}
		b.step("drop classifiers")
		if err := link.DropClassifiers(index); err != nil {
			return false, err
		}
		b.linked[id] = true
		return len(b.linked) < len(b.specs), nil
	}
	return false, nil
}
