// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package doctor

import (
	"context"
	"runtime"
)

// Examine reports that this system cannot be a node.
func (c Config) Examine(context.Context) []Finding {
	return []Finding{{"system", Bad, runtime.GOOS, "nodes run Linux or Windows", "run this on a node"}}
}
