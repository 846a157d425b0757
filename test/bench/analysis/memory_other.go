// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "os"

// peakMemory is not implemented on this system.
func peakMemory(*os.ProcessState) (float64, bool) { return 0, false }
