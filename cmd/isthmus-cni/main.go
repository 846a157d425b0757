// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/isthmus-net/isthmus/cni"
	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// version is set by the linker.
var version = "devel"

func main() { os.Exit(run()) }

func run() int {
	plugin := cni.Plugin{Dial: socket.Dial, Out: os.Stdout}
	if err := skel.PluginMainFuncsWithError(plugin.Funcs(), cni.Versions(), "CNI plugin isthmus "+version); err != nil {
		if printErr := err.Print(); printErr != nil {
			fmt.Fprintln(os.Stderr, "print error:", printErr)
		}
		return 1
	}
	return 0
}
