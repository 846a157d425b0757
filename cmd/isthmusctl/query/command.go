// SPDX-License-Identifier: Apache-2.0

package query

import (
	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
)

// env is the environment of the commands.
type env struct{ cli.Env }

// Commands returns the commands of this package.
func Commands(c cli.Env) []*cobra.Command {
	e := env{c}
	return []*cobra.Command{e.compileCommand(), e.explainCommand(), e.matrixCommand(), e.diffCommand(), e.lintCommand()}
}
