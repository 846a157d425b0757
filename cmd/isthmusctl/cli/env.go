// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/isthmus-net/isthmus/cmd/daemon"
)

// Env is the environment of the program; tests replace it.
type Env struct {
	Stdout, Stderr io.Writer
	// Version is the version of the program.
	Version string
	// Program is the name under which the program was started. As a plugin of kubectl it shows help as kubectl does.
	Program string
	// Dial connects to a socket of the agent.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// usageError is an error of the command line; its exit status is 2.
type usageError struct{ error }

// Usagef returns an error of the command line.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// troubleError is any other error of a command whose exit status 1 is an answer.
type troubleError struct{ error }

var (
	// ErrNotReady makes the exit status 3.
	ErrNotReady = errors.New("node is not ready")
	// ErrNo is the negative answer of a command that Answering made: denied, different,
	// found. The command has printed it.
	ErrNo = errors.New("no")
)

// Answering makes a command whose exit status is 0 for a positive answer, 1 for a negative
// one, and 2 if there is no answer. ErrNotReady is an answer too.
func Answering(f func(c *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		err := f(c, args)
		if err == nil || errors.Is(err, ErrNo) || errors.Is(err, ErrNotReady) {
			return err
		}
		return troubleError{err}
	}
}

// Run executes a command line of isthmusctl, which has these subcommands, and returns the
// exit status.
func (e Env) Run(ctx context.Context, args []string, commands ...*cobra.Command) int {
	root := e.root(commands, args)
	root.SetArgs(args)
	root.SetOut(e.Stdout)
	root.SetErr(e.Stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrNo):
		return 1
	}
	fmt.Fprintf(e.Stderr, "isthmusctl: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	var usage usageError
	var trouble troubleError
	switch {
	case errors.As(err, &usage), errors.As(err, &trouble):
		return 2
	case errors.Is(err, ErrNotReady):
		return 3
	}
	return 1
}

func (e Env) root(commands []*cobra.Command, args []string) *cobra.Command {
	c := &cobra.Command{
		Use:           "isthmusctl",
		Short:         "Look at policies before they are applied, and at the agent of this node",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       e.Version,
		Args:          NoArgs,

		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if word := args[0]; !c.HasParent() && !strings.HasPrefix(word, "-") {
			return NoArgs(c, []string{word}) // the flag may be one of the command that was meant
		}
		return Usagef("%w: %s%ssee %s --help", daemon.FlagError(err), similarFlag(c, err), kubectlFlag(c, err), c.CommandPath())
	})
	if strings.HasPrefix(strings.TrimSuffix(e.Program, ".exe"), "kubectl-") {
		c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl isthmus"}
	}
	c.SetVersionTemplate("isthmusctl {{.Version}} " + Platform() + "\n")
	c.AddCommand(commands...)
	c.InitDefaultHelpCmd()
	c.InitDefaultCompletionCmd()
	for _, d := range c.Commands() {
		switch d.Name() {
		case "help":
			d.Run, d.RunE = nil, help
		case "completion":
			// Cobra prints the help about an unknown shell, with status 0.
			d.Args, d.RunE = NoArgs, func(c *cobra.Command, _ []string) error { return c.Help() }
			for _, shell := range d.Commands() {
				shell.Args = NoArgs
			}
		}
	}
	return c
}

// Platform names the operating system, the architecture and the version of Go of the program.
func Platform() string {
	return fmt.Sprintf("%s/%s %s", runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// help prints the help of a command, and rejects other words.
func help(c *cobra.Command, args []string) error {
	about, rest, err := c.Root().Find(args)
	if err != nil || about == nil || len(rest) > 0 {
		if about == nil || len(rest) == 0 {
			about, rest = c.Root(), args
		}
		return Usagef("no help for %q: %ssee %s --help", strings.Join(args, " "), similar(about, rest[0]), about.CommandPath())
	}
	about.InitDefaultHelpFlag()
	return about.Help()
}

// similar suggests a subcommand with a similar name, as a part of a message.
func similar(c *cobra.Command, word string) string {
	c.SuggestionsMinimumDistance = 2 // a subcommand does not inherit it
	if names := c.SuggestionsFor(word); len(names) > 0 {
		return fmt.Sprintf("did you mean %s? ", strings.Join(names, " or "))
	}
	return ""
}

// similarFlag suggests a flag for the unknown one of an error, as a part of a message.
func similarFlag(c *cobra.Command, err error) string {
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return ""
	}
	names := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra compares names of commands only
	c.Flags().VisitAll(func(f *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if found := names.SuggestionsFor(name); len(found) > 0 {
		return fmt.Sprintf("did you mean --%s? ", strings.Join(found, " or --"))
	}
	return ""
}

// kubectlFlag says what to do instead of a flag that kubectl has, as a part of a message.
func kubectlFlag(c *cobra.Command, err error) string {
	_, flag, _ := strings.Cut(err.Error(), ": ")
	manifests := c.Flags().Lookup("manifests") != nil
	switch name, _, _ := strings.Cut(flag, " in "); strings.Trim(name, "-'") {
	case "k", "kustomize":
		if manifests {
			return fmt.Sprintf("build it first: kubectl kustomize DIR | %s -m -; ", c.CommandPath())
		}
	case "R", "recursive":
		if manifests {
			return "directories are always read with all below them; "
		}
	case "f", "filename":
		if strings.ContainsAny(c.Use, "DF") { // DIR, FILE
			return "give the name without a flag; "
		}
	case "w", "watch":
		if c.Flags().Lookup("follow") != nil {
			return "did you mean --follow? "
		}
		return fmt.Sprintf("to repeat it: watch %s; ", c.CommandPath())
	case "l", "selector":
		if c.Flags().Lookup("namespace") != nil {
			return "select by --namespace; labels select nothing here; "
		}
	}
	return ""
}

// NoArgs rejects arguments that are not flags.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("unexpected argument %q: %s%ssee %s --help", args[0], similar(c, args[0]), flagOf(c, args[0]), c.CommandPath())
	}
	return nil
}

// flagOf names the flag that an argument probably belongs to, as a part of a message.
func flagOf(c *cobra.Command, arg string) string {
	if c.Flags().Lookup("pod") != nil {
		name := strings.TrimPrefix(strings.TrimPrefix(arg, "pod/"), "pods/")
		if !strings.Contains(name, "/") {
			name = "NAMESPACE/" + name
		}
		return fmt.Sprintf("did you mean --pod %s? ", name)
	}
	if c.Flags().Lookup("manifests") == nil {
		return ""
	}
	if _, err := os.Stat(arg); err == nil {
		return fmt.Sprintf("did you mean --manifests %s? ", arg)
	}
	if c.Flags().Lookup("from") != nil {
		return "name the ends with --from and --to; "
	}
	return ""
}
