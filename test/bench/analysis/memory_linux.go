// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"syscall"
)

// peakMemory returns the peak of resident memory of a process that has ended, in MiB.
func peakMemory(p *os.ProcessState) (float64, bool) {
	usage, ok := p.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, false
	}
	return float64(usage.Maxrss) / 1024, true // in KiB on Linux
}
