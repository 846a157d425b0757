// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package node

import "github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"

// readPinnedMaps always fails: only Linux has the maps.
func readPinnedMaps(string, bool) (*pinnedMaps, error) {
	return nil, cli.Usagef("this system has no BPF maps: isthmusctl bundle and isthmusctl trace read the ACLs of Windows nodes")
}
