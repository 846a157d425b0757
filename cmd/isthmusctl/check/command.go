// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
)

// env is the environment of the commands.
type env struct{ cli.Env }

// Live compares what the data path of this node decides with its policies. It asks the agent at a socket, and returns
// cli.ErrNo if something differs.
type Live func(ctx context.Context, socket string, timeout time.Duration) error

// Commands returns the commands of this package.
func Commands(c cli.Env, live Live) []*cobra.Command {
	e := env{c}
	return []*cobra.Command{e.testCommand(), e.verifyCommand(live)}
}
