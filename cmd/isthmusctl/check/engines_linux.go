// SPDX-License-Identifier: Apache-2.0

package check

import (
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/linux/probe"
)

// loadPrograms loads the BPF programs of one node into the kernel.
func loadPrograms() (engine.Node, error) { return probe.Load() }
