// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package doctor

import (
	"context"
	"runtime"
)

// Examine finds that this is no node.
func (c Config) Examine(context.Context) []Finding {
	return []Finding{{"system", Bad, runtime.GOOS, "nodes run Linux or Windows", "run this on a node"}}
}
