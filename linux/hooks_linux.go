// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// At first, the programs of an endpoint are on the clsact hooks of its interface, because
// attaching there takes no time. A tcx link waits for RCU grace periods of the kernel, but it
// is pinned, and no other tool removes it by accident. Where the kernel supports tcx, Idle
// moves one endpoint after the other. While both exist, each packet is decided twice, with the
// same verdict.

func (b *Backend) classifiers() link.Classifiers {
	return link.Classifiers{FromPod: b.path.Program(model.Egress).FD(), ToPod: b.path.Program(model.Ingress).FD()}
}

// classify attaches the programs to the clsact hooks of an interface without tcx links.
func (b *Backend) classify(name string, index int) error {
	if err := b.egress.Ensure(); err != nil {
		return err
	}
	if b.underOlder(index) {
		return nil
	}
	if b.cfg.PolicyOnly {
		return b.programForeign(name, index)
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
	found, err := b.list()
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

// trackConnections loads programs that query connection tracking, if its kernel module is loaded. It
// reports whether all programs do.
func (b *Backend) trackConnections() (bool, error) {
	if asks, err := b.path.ProbeConntrack(); err != nil || !asks {
		return false, err
	}
	b.step("exchange programs")
	if err := errors.Join(b.path.AdoptLinks(), b.renewClassifiers()); err != nil {
		return false, err
	}
	b.log.Info("programs can query connection tracking now")
	return true, nil
}

// Idle implements dataplane.Backend. It syncs the components. Then it moves the programs of one endpoint
// to tcx links, which holds the network lock (RTNL) of the kernel for about 30 ms.
func (b *Backend) Idle(ctx context.Context) (more bool, err error) {
	defer b.notePathModes()
	if err := errors.Join(b.components.Sync(ctx, time.Now()), b.followUplink()); err != nil {
		return false, err
	}
	if !b.tcx || len(b.specs) == len(b.linked) || b.path.Older() != "" {
		return false, nil
	}
	for id := range b.specs {
		if b.linked[id] {
			continue
		}
		name := b.hostName(id)
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
