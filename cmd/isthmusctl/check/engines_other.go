// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package check

import (
	"errors"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
)

// loadPrograms always fails: only Linux can run the programs.
func loadPrograms() (engine.Node, error) { return nil, errors.New("BPF programs run on Linux only") }
