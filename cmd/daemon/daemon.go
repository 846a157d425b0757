// SPDX-License-Identifier: Apache-2.0

// Package daemon holds what the command lines of isthmus-agent, isthmus-controller and isthmus-relay have in common:
// the exit status, errors of usage, the version, the configuration file, and the flags of the log.
//
// It does not know what the commands do, and it does not start anything.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/cmd/daemon/pages"
)

// UsageError reports an invalid command line. The exit status is 2.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

func (e UsageError) Unwrap() error { return e.Err }

// Command returns a command without flags that calls run, with a subcommand that prints the version. A standard error
// of the command line is a UsageError.
func Command(name, short, version string, run func(*cobra.Command) error) *cobra.Command {
	root := &cobra.Command{
		Use:           name,
		Short:         short,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		Args:          NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := ReadConfig(c.Flags(), nil); err != nil {
				return UsageError{err}
			}
			return run(c)
		},
	}
	RegisterConfig(root.Flags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return UsageError{fmt.Errorf("%w: see %s --help", FlagError(err), name)}
	})
	root.CompletionOptions.DisableDefaultCmd = true
	text := fmt.Sprintf("%s %s %s/%s %s\n", name, version, runtime.GOOS, runtime.GOARCH, runtime.Version())
	root.SetVersionTemplate(text)
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := io.WriteString(c.OutOrStdout(), text)
			return err
		},
	})
	root.AddCommand(pages.Command(pages.Administrators, version, func(err error) error { return UsageError{err} }))
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return UsageError{fmt.Errorf("no help for %q: see %s --help", strings.Join(args, " "), name)}
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	})
	return root
}

// NoArgs rejects arguments that are not flags.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return UsageError{fmt.Errorf("unexpected argument %q: see %s --help", args[0], c.CommandPath())}
	}
	return nil
}

// Run executes a command line, writes an error to stderr as one line, and returns the exit status: 0, 1, or 2 for a
// UsageError.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %s\n", root.Name(), strings.ReplaceAll(err.Error(), "\n", "; "))
	var usage UsageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// Log holds the flags of the log.
type Log struct {
	level, format string
	current       slog.LevelVar
}

// Register adds the flags.
func (l *Log) Register(f *pflag.FlagSet) {
	f.StringVar(&l.level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&l.format, "log-format", "text", "text or json")
}

// Check returns what is wrong with the flags, or nil.
func (l *Log) Check() error {
	var errs []error
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, l.level) {
		errs = append(errs, fmt.Errorf("--log-level %q: give debug, info, warn or error", l.level))
	}
	if l.format != "text" && l.format != "json" {
		errs = append(errs, fmt.Errorf("--log-format %q: give text or json", l.format))
	}
	return errors.Join(errs...)
}

// Level returns the level of the Logger, which may be changed.
func (l *Log) Level() *slog.LevelVar { return &l.current }

// Logger returns a logger that writes to w. The flags must be valid.
func (l *Log) Logger(w io.Writer) *slog.Logger {
	_ = l.current.UnmarshalText([]byte(l.level)) // validated by Check
	h := &slog.HandlerOptions{Level: &l.current}
	if l.format == "json" {
		return slog.New(slog.NewJSONHandler(w, h))
	}
	return slog.New(slog.NewTextHandler(w, h))
}
