// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/common/agent/dirlock"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

// agentStops is how long the commands wait for an agent that is stopping.
const agentStops = 10 * time.Second

// node is this node while no agent runs.
type node struct {
	*takeover.Host
	store   *endpoint.Store
	release func()
}

// open locks the directories that an agent would lock.
func (e env) open(ctx context.Context, o *options) (*node, error) {
	var held []*dirlock.Lock
	release := func() {
		for _, l := range held {
			_ = l.Release() // the end of the process does so anyway
		}
	}
	records := filepath.Join(o.stateDir, "endpoints")
	for _, dir := range []string{o.bpffs, records} {
		l, err := dirlock.Take(ctx, dir, agentStops, func(holder string) {
			fmt.Fprintf(e.Stderr, "waiting for %s, which uses %s: stop the agent of this node\n", holder, dir)
		})
		if err != nil {
			release()
			return nil, fmt.Errorf("change this node while no agent runs: %w", err)
		}
		held = append(held, l)
	}
	store, err := endpoint.Open(records)
	if err != nil {
		release()
		return nil, err
	}
	host, err := takeover.NewHost(store, filepath.Join(o.bpffs, loader.LayoutVersion, "links"))
	if err != nil {
		release()
		return nil, err
	}
	return &node{host, store, func() { host.Close(); release() }}, nil
}

// forward plans the migration, or continues one, and does its steps.
func (e env) forward(ctx context.Context, o *options) error {
	n, err := e.open(ctx, o)
	if err != nil {
		return err
	}
	defer n.release()
	p, err := takeover.Load(o.stateDir)
	if err != nil {
		return err
	}
	switch {
	case p == nil:
		plan, reasons, err := makePlan(o)
		if err != nil {
			return err
		}
		if len(reasons) > 0 {
			return e.writePlan(nil, reasons, o)
		}
		p = takeover.Begin(plan)
	case p.Complete():
		fmt.Fprintf(e.Stdout, "this node is migrated already: start the agent with %s\n", strings.Join(p.Plan.AgentFlags(), " "))
		return nil
	case p.Plan.Network.From != o.from:
		return otherNetwork(p)
	default:
		if err := onlyConf(p.Plan.Network); err != nil { // it may be new
			return err
		}
	}
	err = takeover.Forward(p, n, takeover.Save(o.stateDir), e.say)
	if errors.Is(err, takeover.ErrReversed) {
		return errors.Join(err, takeover.Forget(o.stateDir))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Stdout, "migrated %d pods in %d steps: start the agent with %s\n", len(p.Plan.Pods), len(p.Plan.Steps), strings.Join(p.Plan.AgentFlags(), " "))
	return nil
}

func otherNetwork(p *takeover.Progress) error {
	return fmt.Errorf("a migration from %s is in progress: give --from %s", p.Plan.Network.From, p.Plan.Network.From)
}

// previewReversal prints what backward would do now.
func (e env) previewReversal(p *takeover.Progress) {
	steps := p.Reversal(p.Until())
	fmt.Fprintf(e.Stdout, "%d steps would be reversed:\n", len(steps))
	for i, s := range steps {
		fmt.Fprintf(e.Stdout, "%4d  reverse: %s\n", i+1, p.Plan.Describe(s))
	}
	switch {
	case p.Returning():
		fmt.Fprintln(e.Stdout, "the agent must run with --mode=policy meanwhile")
	case p.NeedsAgent():
		fmt.Fprintf(e.Stdout, "then %s would be removed: stop the agent before; after it, start the agent with --mode=policy, and run migrate rollback again\n",
			filepath.Join(p.Plan.Network.ConfDir, install.ConfName))
	default:
		fmt.Fprintln(e.Stdout, "stop the agent before; after it, start the agent with --mode=policy")
	}
}

const nothingToReverse = "this node has no migration to reverse"

// backward reverses a migration.
func (e env) backward(ctx context.Context, o *options) error {
	p, err := takeover.Load(o.stateDir)
	if err != nil {
		return err
	}
	switch {
	case p == nil:
		e.say(nothingToReverse)
		return nil
	case o.dryRun:
		e.previewReversal(p)
		return nil
	case p.Returning():
		return e.finishReturn(p, o)
	}
	n, err := e.open(ctx, o)
	if err != nil {
		return err
	}
	defer n.release()
	if p, err = takeover.Load(o.stateDir); err != nil { // another command may have held the directories until now
		return err
	}
	switch {
	case p == nil:
		e.say(nothingToReverse)
		return nil
	case p.Returning():
		return errors.New("another rollback has given the pods back: start the agent with --mode=policy, and run migrate rollback again")
	case p.NeedsAgent():
		return e.beginReturn(p, n, o)
	}
	if err := takeover.Reverse(p, 0, n, takeover.Save(o.stateDir), e.say); err != nil {
		return err
	}
	fmt.Fprintln(e.Stdout, "the migration is reversed: start the agent with --mode=policy")
	return takeover.Forget(o.stateDir)
}

// beginReturn gives pods back to mode policy, while the node still routes to them.
func (e env) beginReturn(p *takeover.Progress, n *node, o *options) error {
	records, problems, err := n.store.Load()
	if err = errors.Join(append(problems, err)...); err != nil {
		return err
	}
	for _, r := range records {
		if r.Kind == endpoint.Own && r.State != endpoint.Released {
			return fmt.Errorf("pod %s was created after the migration, and network %s does not know it: delete such pods first", r.Pod(), p.Plan.Network.Name)
		}
	}
	if err := takeover.Reverse(p, p.Until(), n, takeover.Save(o.stateDir), e.say); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(p.Plan.Network.ConfDir, install.ConfName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI configuration of mode full: %w", err)
	}
	if err := n.Leave(&p.Plan, o.stateDir); err != nil {
		return err
	}
	if err := p.Return(takeover.Save(o.stateDir)); err != nil {
		return err
	}
	fmt.Fprintln(e.Stdout, "the pods are ready for mode policy: start the agent with --mode=policy, and run migrate rollback again")
	return nil
}

// finishReturn moves the pods to the bridge, while the agent of mode policy runs.
func (e env) finishReturn(p *takeover.Progress, o *options) error {
	host, err := takeover.NewHost(nil, "")
	if err != nil {
		return err
	}
	defer host.Close()
	if waits, err := host.Awaits(&p.Plan, o.stateDir); err != nil {
		return err
	} else if waits != "" {
		return fmt.Errorf("the agent does not enforce policy on interface %s yet: start it with --mode=policy, and try again", waits)
	}
	if err := takeover.Reverse(p, 0, host, takeover.Save(o.stateDir), e.say); err != nil {
		return err
	}
	fmt.Fprintln(e.Stdout, "the migration is reversed")
	return takeover.Forget(o.stateDir)
}

func (e env) say(line string) { fmt.Fprintln(e.Stdout, line) }
