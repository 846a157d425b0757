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

// At first, the programs of an endpoint are on the clsact hooks of its interface, because
// attaching there takes no time. A tcx link waits for RCU grace periods of the kernel, but it
// is pinned, and no other tool removes it by accident. Where the kernel supports tcx, Idle
// moves one endpoint after the other. While both exist, each packet is decided twice, with the
// same verdict.

func (b *Backend) classifiers() link.Classifiers {
	return link.Classifiers{FromPod: b.path.Program(model.Egress).FD(), ToPod: b.path.Program(model.Ingress).FD()}
}

// The mechanisms that decide egress after DNAT.
const (
	byHooks = "netfilter"
	byRule  = "nftables"
)

// hookEgress attaches the programs that decide egress after DNAT, before any program leaves a
// verdict to them. It uses the netfilter hooks if the kernel supports programs there, otherwise
// an nftables rule.
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
			return nil // the older programs leave verdicts to the rule
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
		return fmt.Errorf("egress to Services cannot be enforced: it needs Linux 6.4 or an nftables rule: %w", err)
	}
	return b.path.UnhookEgress()
}

// lostEgress reports whether another process flushed the rule that decides egress.
func (b *Backend) lostEgress() (bool, error) {
	if b.egress != byRule {
		return false, nil
	}
	has, err := link.HasEgressFilter()
	return !has, err
}

// mendEgress adds the rule again if another process flushed it.
func (b *Backend) mendEgress() error {
	b.egressDue = time.Now().Add(lookAtEgress)
	lost, err := b.lostEgress()
	if err != nil || !lost {
		return err
	}
	b.log.Warn("another process flushed the nftables rule that decides egress to Services; it is added again")
	if err := b.hookEgress(); err != nil {
		return err
	}
	b.mended.Add(1)
	return nil
}

// lookAtEgress is the interval between checks of the rule while the agent is idle. After a
// flush, egress to Services may be open for that long.
const lookAtEgress = time.Second

// classify attaches the programs to the clsact hooks of an interface without tcx links.
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

// renewClassifiers gives the programs of this build to every interface without tcx links, by
// one atomic replacement each.
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

// policed reports whether both programs are attached to an interface, on either kind of hook.
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

// Idle implements dataplane.Backend. It repairs the fabric, the uplinks and the rule for
// egress. Then it moves the programs of one endpoint to tcx links, which holds the network lock
// (RTNL) of the kernel for about 30 ms.
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
