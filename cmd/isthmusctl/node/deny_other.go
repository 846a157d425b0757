// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package node

import (
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
)

// pinnedDenials always fails: only Linux has the maps.
func pinnedDenials(string) (denials, error) {
	return nil, cli.Usagef("this system has no BPF maps: give --manifests DIR or --kubeconfig FILE")
}
