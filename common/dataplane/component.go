// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

// Component is one feature of a node's data path besides its policy core, such as host ports or routes to
// other nodes. A Backend has a list of them. It calls every method for all of them, in the order of the
// list, from one goroutine. A failure of one component does not prevent the calls of the others.
//
// A component owns the objects of the system that it creates. It reads its own section of a State. Its
// methods are idempotent: repeated after a crash, they complete the missing parts. A component that also
// does something else implements Auditor, Repairer, Counter, Describer or EndpointObserver.
type Component interface {
	// Apply takes the component from its current state to its section of the State. It returns the entries
	// that are not enforced as written, without OS and Platform. An error makes Apply of the
	// Backend fail, and the agent repeat it. A component whose failure does not concern the decisions about
	// packets reports a problem instead, and retries in Sync.
	Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error)

	// Sync compares the component with the system and repairs it, once its next check is due. Idle calls
	// it about once a second. Before the first Apply it must keep what an earlier agent installed.
	Sync(ctx context.Context, now time.Time) error

	// Problems returns what the component cannot do as intended, each with the remedy.
	Problems() []string

	// PathModes returns the modes in which the component works on this node.
	PathModes() []PathMode

	// Close releases what the component holds open. What it installed stays in force.
	Close() error
}

// Repairer is a Component that repairs what its Audit found. A Backend whose Apply writes changes only
// calls it before Apply. A Component that compares everything in Apply needs no Repair.
type Repairer interface {
	Auditor
	Repair(ctx context.Context) error
}

// Counter is a Component with totals of its own.
type Counter interface {
	// Count adds them. Any goroutine may call it.
	Count(c *Counters) error
}

// Describer is a Component that describes its work in more detail than PathModes.
type Describer interface {
	// Facts returns lines for administrators, each as "subject: statement".
	Facts() []string
}

// EndpointObserver is a Component with objects of single attachments.
type EndpointObserver interface {
	// EndpointAdded records a complete attachment. Objects that need not exist before the next Apply are
	// created then.
	EndpointAdded(spec EndpointSpec)
	// RemoveEndpoint removes the objects of an attachment, before the attachment itself is removed. An
	// unknown attachment is not an error. After an error the attachment stays.
	RemoveEndpoint(id model.EndpointID) error
}

// Host holds what a Backend provides to each of its components.
type Host struct {
	Log *slog.Logger
	// Step is called before every change of the system, with the name of the step.
	Step func(name string)
	// Repaired counts and remembers a change by another process that the component has repaired: what names the
	// repair in a few words.
	Repaired func(what string)
}

// Components are the components of a Backend, in the order in which it calls them.
type Components []Component

// Apply applies the State to every component. It returns all entries that are not enforced as written, with
// the OS and platform of the features, and all errors.
func (cs Components) Apply(ctx context.Context, s *model.State, f model.Features) (all []model.Unsupported, err error) {
	for _, c := range cs {
		unsupported, failed := c.Apply(ctx, s)
		for _, u := range unsupported {
			u.OS, u.Platform = f.OS, f.Platform
			all = append(all, u)
		}
		err = errors.Join(err, failed)
	}
	return all, err
}

// Sync calls Sync of every component and returns all errors.
func (cs Components) Sync(ctx context.Context, now time.Time) (err error) {
	for _, c := range cs {
		err = errors.Join(err, c.Sync(ctx, now))
	}
	return err
}

// Problems returns the problems of all components.
func (cs Components) Problems() (all []string) {
	for _, c := range cs {
		all = append(all, c.Problems()...)
	}
	return all
}

// PathModes returns the modes of all components.
func (cs Components) PathModes() (all []PathMode) {
	for _, c := range cs {
		all = append(all, c.PathModes()...)
	}
	return all
}

// Facts returns the lines of every Describer.
func (cs Components) Facts() (all []string) {
	for _, c := range cs {
		if d, ok := c.(Describer); ok {
			all = append(all, d.Facts()...)
		}
	}
	return all
}

// Audit returns the differences of every Auditor among the components. It stops at the first error.
func (cs Components) Audit(ctx context.Context, s *model.State) (all []Drift, err error) {
	for _, c := range cs {
		a, ok := c.(Auditor)
		if !ok {
			continue
		}
		found, err := a.Audit(ctx, s)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// Repair calls Repair of every Repairer and returns all errors.
func (cs Components) Repair(ctx context.Context) (err error) {
	for _, c := range cs {
		if r, ok := c.(Repairer); ok {
			err = errors.Join(err, r.Repair(ctx))
		}
	}
	return err
}

// Count adds the totals of every Counter.
func (cs Components) Count(total *Counters) (err error) {
	for _, c := range cs {
		if n, ok := c.(Counter); ok {
			err = errors.Join(err, n.Count(total))
		}
	}
	return err
}

// EndpointAdded calls every EndpointObserver.
func (cs Components) EndpointAdded(spec EndpointSpec) {
	for _, c := range cs {
		if o, ok := c.(EndpointObserver); ok {
			o.EndpointAdded(spec)
		}
	}
}

// RemoveEndpoint calls every EndpointObserver and returns all errors.
func (cs Components) RemoveEndpoint(id model.EndpointID) (err error) {
	for _, c := range cs {
		if o, ok := c.(EndpointObserver); ok {
			err = errors.Join(err, o.RemoveEndpoint(id))
		}
	}
	return err
}

// Close closes every component and returns all errors.
func (cs Components) Close() (err error) {
	for _, c := range cs {
		err = errors.Join(err, c.Close())
	}
	return err
}

// CountModes returns the modes of a part whose count is not zero, sorted.
func CountModes(part string, count map[string]int) (modes []PathMode) {
	for _, mode := range slices.Sorted(maps.Keys(count)) {
		if count[mode] > 0 {
			modes = append(modes, PathMode{Part: part, Mode: mode, Count: count[mode]})
		}
	}
	return modes
}
