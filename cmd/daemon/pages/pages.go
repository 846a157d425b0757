// SPDX-License-Identifier: Apache-2.0

// Package pages writes reference pages of command lines: manual pages, and Markdown. A release contains the manual pages.
//
// It does not know any command, and it does not print help texts.
package pages

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// The sections of the manual.
const (
	Users          = "1"
	Administrators = "8"
)

// Command returns a hidden command that writes a page of each visible command beside it. Manual pages are in a section, and
// have the date of SOURCE_DATE_EPOCH if the environment has it. usage makes an error of a wrong command line.
func Command(section, version string, usage func(error) error) *cobra.Command {
	var dir, format string
	c := &cobra.Command{
		Use:    "docs",
		Short:  "Write a reference page of each command",
		Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("unexpected argument %q: see %s --help", args[0], c.CommandPath()))
			}
			if format != "man" && format != "markdown" {
				return usage(fmt.Errorf("--type %q: give man or markdown", format))
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("create directory of pages: %w", err)
			}
			useWords(c.Root())
			if format == "markdown" {
				c.Root().DisableAutoGenTag = true // no date
				return doc.GenMarkdownTree(c.Root(), dir)
			}
			return Manual(c.Root(), section, version, dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", ".", "directory for the pages")
	c.Flags().StringVar(&format, "type", "man", "man or markdown")
	return c
}

// Manual writes a manual page of each visible command of a command line.
func Manual(root *cobra.Command, section, version, dir string) error {
	root.DisableAutoGenTag = true // no date
	return doc.GenManTree(root, &doc.GenManHeader{Section: section, Source: "Isthmus " + version, Manual: "Isthmus"}, dir)
}

// localDefault is the annotation of a flag whose default depends on the machine.
const localDefault = "isthmus/default"

// SetDefault says in words what a default is that depends on the machine. Pages have the words, so that every machine writes
// the same; help texts have the value. The flag must exist.
func SetDefault(f *pflag.FlagSet, flag, words string) {
	f.Lookup(flag).Annotations = map[string][]string{localDefault: {words}}
}

func useWords(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if words := f.Annotations[localDefault]; len(words) == 1 {
			f.DefValue = words[0]
		}
	})
	for _, sub := range c.Commands() {
		useWords(sub)
	}
}
