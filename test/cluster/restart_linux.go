// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"syscall"
)

// SetAgentFlags says with which flags the agents of Linux nodes start from now on.
func (c *Cluster) SetAgentFlags(flags ...string) { c.cfg.AgentFlags = flags }

// Restart ends the agent, by SIGKILL without a chance to do anything or by
// SIGTERM in order, and starts it again; it returns when the new one is ready.
func (n *Node) Restart(ctx context.Context, how syscall.Signal) error {
	end := n.stop
	if how == syscall.SIGKILL {
		end = n.Kill
	}
	if err := end(); err != nil {
		return fmt.Errorf("end the agent of %s by %s: %w", n.Name, how, err)
	}
	if err := n.Start(); err != nil {
		return err
	}
	return n.waitReady(ctx)
}
