// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/agent/loglevel"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
)

var logLevels = []string{"debug", "info", "warn", "error"}

func (e env) logLevelCommand() *cobra.Command {
	s := &shared{}
	var during time.Duration
	c := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show or change the level of the agent's log, without a restart",
		Long: `Show the level of the agent's log, or change it. A restart returns to the level of --log-level, and so does the end
of --for. The agent writes each change to its log.

Exit status: 0 the agent answered, 2 there is no answer.`,
		Example:   "  isthmusctl log-level debug --for 10m",
		ValidArgs: logLevels,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return cli.Usagef("unexpected argument %q: see %s --help", args[1], c.CommandPath())
			case len(args) == 1 && !slices.Contains(logLevels, args[0]):
				return cli.Usagef("level %q: give debug, info, warn or error", args[0])
			}
			return nil
		},
		RunE: cli.Answering(func(c *cobra.Command, args []string) error {
			given := c.Flags().Changed("for")
			r := &isthmusv1.LogLevelRequest{Seconds: uint32(during / time.Second)}
			if len(args) == 1 {
				r.Level = args[0]
			}
			switch {
			case given && r.Level == "":
				return cli.Usagef("--for: give a level, too")
			case given && (during < time.Second || during > loglevel.Longest):
				return cli.Usagef("--for %s: give 1s to %s", during, loglevel.Longest)
			}
			return e.logLevel(c.Context(), s, r)
		}),
	}
	s.register(c)
	c.Flags().Lookup("output").Usage = "text, json or yaml"
	c.Flags().DurationVar(&during, "for", 0, "return to the level of --log-level after this time; without it at the next start")
	return c
}

func (e env) logLevel(ctx context.Context, s *shared, r *isthmusv1.LogLevelRequest) error {
	if s.output == "wide" {
		return cli.Usagef("--output wide: give text, json or yaml")
	}
	if err := s.check(); err != nil {
		return err
	}
	var state *isthmusv1.LogLevelResponse
	err := e.connect(ctx, s, func(ctx context.Context, c *grpc.ClientConn) (err error) {
		state, err = isthmusv1.NewControlClient(c).LogLevel(ctx, r)
		return err
	})
	switch {
	case err != nil:
		return err
	case s.output != "text":
		return writeMessage(e.Stdout, s.output, "LogLevel", state)
	}
	text := state.GetLevel()
	switch until := state.GetUntilUnixNano(); {
	case until != 0:
		text += fmt.Sprintf(" until %s, then %s", when(until), state.GetConfigured())
	case state.GetLevel() != state.GetConfigured():
		text += " until the agent restarts, then " + state.GetConfigured()
	}
	_, err = fmt.Fprintln(e.Stdout, text)
	return err
}
