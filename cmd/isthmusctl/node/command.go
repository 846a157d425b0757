// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
)

// env is the environment of the commands.
type env struct{ cli.Env }

// Commands returns the commands of this package.
func Commands(c cli.Env) []*cobra.Command {
	e := env{c}
	return []*cobra.Command{e.statusCommand(), e.endpointsCommand(), e.eventsCommand(), e.denyCommand(), e.doctorCommand(), e.traceCommand(),
		e.policiesCommand(), e.bundleCommand(), e.dumpCommand(), e.replayCommand(), e.bpfCommand(), e.logLevelCommand()}
}
