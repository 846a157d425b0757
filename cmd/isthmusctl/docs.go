// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
)

// docsCommand writes reference pages of all commands. A release contains its manual pages.
// They have the date of SOURCE_DATE_EPOCH if the environment has it.
func docsCommand() *cobra.Command {
	var dir, format string
	c := &cobra.Command{
		Use:    "docs",
		Short:  "Write a reference page of each command",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if format != "man" && format != "markdown" {
				return cli.Usagef("--type %q: give man or markdown", format)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("create directory of pages: %w", err)
			}
			root := c.Root()
			root.DisableAutoGenTag = true // no date
			if format == "markdown" {
				return doc.GenMarkdownTree(root, dir)
			}
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Isthmus " + version, Manual: "Isthmus"}, dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", ".", "directory for the pages")
	c.Flags().StringVar(&format, "type", "man", "man or markdown")
	return c
}
