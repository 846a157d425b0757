// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"slices"
)

// ofPod reports whether a step of the kind changes one pod.
func (k Kind) ofPod() bool {
	return k == RoutePod || k == ConfigurePod || k == LeaveBridge || k == RenamePort || k == WriteRecord
}

// System changes the node. Both calls can be repeated, also after an interruption: they change what still
// differs.
type System interface {
	Do(p *Plan, s Step) error
	Undo(p *Plan, s Step) error
}

// Progress is how far a migration has come. It is on disk before each change.
type Progress struct {
	Version int `json:"version"`
	// Back is true once the steps are being reversed.
	Back bool `json:"back,omitempty"`
	// Ran is true once all steps were done, so that an agent of mode full may have run.
	Ran bool `json:"ran,omitempty"`
	// Given is true once the agent of mode policy may attach the pods again.
	Given bool `json:"given,omitempty"`
	// Done is the number of completed steps. The next one may be done in part.
	Done int  `json:"done"`
	Plan Plan `json:"plan"`
}

// version is the version of the file format of a Progress.
const version = 1

// Begin returns the Progress of a Plan of which no step is done.
func Begin(p *Plan) *Progress { return &Progress{Version: version, Plan: *p} }

// Complete reports whether all steps are done.
func (p *Progress) Complete() bool { return !p.Back && p.Done == len(p.Plan.Steps) }

// Journal stores a Progress before the next change.
type Journal func(*Progress) error

// ErrReversed is wrapped by the error of Run if it has reversed all steps. The node is as before.
var ErrReversed = errors.New("the steps before were reversed")

// Forward does the remaining steps. If one fails it reverses that step and all before it. say gets a line for
// each change.
func Forward(p *Progress, s System, save Journal, say func(string)) error {
	for !p.Complete() {
		if p.Back {
			return errors.New("this migration is being reversed: run migrate rollback")
		}
		if err := save(p); err != nil {
			return err
		}
		step := p.Plan.Steps[p.Done]
		say(p.Plan.Describe(step))
		if err := s.Do(&p.Plan, step); err != nil {
			err = fmt.Errorf("%s: %w", p.Plan.Describe(step), err)
			if back := Reverse(p, 0, s, save, say); back != nil {
				return errors.Join(err, fmt.Errorf("and the steps before could not be reversed: run migrate rollback: %w", back))
			}
			return fmt.Errorf("%w: %w", ErrReversed, err)
		}
		p.Done++
	}
	p.Ran = true
	return save(p)
}

// Boundary is the number of steps after which no pod is a port of the bridge any more. The programs of mode
// full drop what arrives by the bridge, so they must not run before.
func (p *Plan) Boundary() int {
	for i := len(p.Steps); i > 0; i-- {
		if p.Steps[i-1].Kind == LeaveBridge {
			return i
		}
	}
	return 0
}

// Until is the number of steps that the next rollback leaves in force.
func (p *Progress) Until() int {
	if p.NeedsAgent() {
		return p.Plan.Boundary()
	}
	return 0
}

// NeedsAgent reports whether an agent of mode policy must attach the pods again before they move to the bridge.
func (p *Progress) NeedsAgent() bool { return p.Ran && !p.Given }

// Returning reports whether the agent of mode policy may attach the pods.
func (p *Progress) Returning() bool { return p.Given }

// Return records that the agent of mode policy may attach the pods.
func (p *Progress) Return(save Journal) error {
	p.Given = true
	return save(p)
}

// Remaining returns the steps that Forward does, in their order.
func (p *Progress) Remaining() []Step { return p.Plan.Steps[p.Done:] }

// Reversal returns the steps that Reverse reverses, in its order.
func (p *Progress) Reversal(until int) []Step {
	steps := slices.Clone(p.Plan.Steps[until:max(until, p.begun())])
	slices.Reverse(steps)
	return steps
}

// begun is the number of steps that are done, at least in part.
func (p *Progress) begun() int {
	if p.Back {
		return p.Done
	}
	return min(p.Done+1, len(p.Plan.Steps))
}

// Reverse reverses the steps in the opposite order, the one that may be done in part first. The first steps
// stay, up to the number in until.
func Reverse(p *Progress, until int, s System, save Journal, say func(string)) error {
	p.Done, p.Back = p.begun(), true
	for ; p.Done > until; p.Done-- {
		if err := save(p); err != nil {
			return err
		}
		step := p.Plan.Steps[p.Done-1]
		say("reverse: " + p.Plan.Describe(step))
		if err := s.Undo(&p.Plan, step); err != nil {
			return fmt.Errorf("reverse %q: %w", p.Plan.Describe(step), err)
		}
	}
	return save(p)
}
