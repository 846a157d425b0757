// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/daemon/pages"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cni"
)

// docsCommand writes reference pages of all commands.
func docsCommand() *cobra.Command {
	c := pages.Command(pages.Users, version, func(err error) error { return cli.Usagef("%w", err) })
	write := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := write(c, args); err != nil || c.Flag("type").Value.String() != "man" {
			return err
		}
		return pages.Manual(pluginCommand(), pages.Administrators, version, c.Flag("dir").Value.String())
	}
	return c
}

// pluginCommand describes the CNI plugin, which has no command line.
func pluginCommand() *cobra.Command {
	c := &cobra.Command{Use: "isthmus-cni", Short: "CNI plugin of Isthmus", Run: func(*cobra.Command, []string) {}, DisableFlagsInUseLine: true,
		Long: fmt.Sprintf(`The container runtime executes isthmus-cni when pods start and stop. The plugin asks the agent of the node, which does all
work. isthmus-agent(8) installs the plugin and its configuration.

The request is in the environment (CNI_COMMAND and others) and on standard input, as the CNI specification defines (versions %s).
The exit status is 0, or 1 with an error in JSON on standard output.

These keys of the network configuration belong to the plugin:

* **mode**: full (default), where the agent makes the interface of the pod, or policy, where an earlier plugin of the list makes it
* **socket**: absolute path of the agent's socket, on Windows the name of its pipe
* **timeoutSeconds**: how long a request may take (default %g)`,
			strings.Join(cni.Versions().SupportedVersions(), ", "), cni.DefaultTimeout.Seconds())}
	c.Flags().Bool("help", false, "")
	c.Flag("help").Hidden = true // or the page would have one
	return c
}
