// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"syscall"
)

// SetAgentFlags sets the flags of Linux agents that start later.
func (c *Cluster) SetAgentFlags(flags ...string) { c.cfg.AgentFlags = flags }

// Restart ends the agent by SIGKILL or SIGTERM, and starts it again. It returns when the new one is ready.
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
