// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// newBackend finds no data path: nodes run Linux or Windows.
func newBackend(*options, func(string), *slog.Logger) opener {
	return opener{open: func(context.Context, model.Node) (dataplane.Backend, error) {
		return nil, fmt.Errorf("there is no data path for %s: run the agent on Linux or Windows", runtime.GOOS)
	}}
}

// checkMapEntries has nothing to check: the flag is refused here.
func checkMapEntries(map[string]int) error { return nil }

// checkFlowEvents has nothing to check: the flags are refused here.
func checkFlowEvents(*flowOptions) error { return nil }
