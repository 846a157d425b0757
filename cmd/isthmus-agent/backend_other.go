// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// newBackend returns an opener that fails: nodes run Linux or Windows.
func newBackend(*options, func(string), *slog.Logger) opener {
	return opener{open: func(context.Context, model.Node) (dataplane.Backend, error) {
		return nil, fmt.Errorf("there is no data path for %s: run the agent on Linux or Windows", runtime.GOOS)
	}}
}

// checkMapEntries accepts everything: checkNode rejects the flag on this OS.
func checkMapEntries(map[string]int) error { return nil }

// checkFlowEvents accepts everything: checkNode rejects the flags on this OS.
func checkFlowEvents(*flowOptions) error { return nil }

// readLists returns nil: there is no data path.
func readLists() trace.Lists { return nil }

// migrating returns nil: only Linux nodes are migrated.
func migrating(string) error { return nil }
