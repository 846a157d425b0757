// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// shared are the flags of the commands that query the agent.
type shared struct {
	socket  string
	timeout time.Duration
	output  string
	forever bool // the answer may take any time
}

// registerConnection registers the flags that lead to the agent.
func (s *shared) registerConnection(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.socket, "socket", socket.Default, "the agent's socket")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "how long to wait for the agent")
}

func (s *shared) register(c *cobra.Command) {
	s.registerConnection(c)
	cli.RegisterOutput(c, &s.output, "text", "wide", "json", "yaml")
}

func (s *shared) check() error {
	if !slices.Contains([]string{"text", "wide", "json", "yaml"}, s.output) {
		return cli.Usagef("--output %q: give text, wide, json or yaml", s.output)
	}
	if s.timeout <= 0 {
		return cli.Usagef("--timeout %s: give a duration above 0", s.timeout)
	}
	return nil
}
