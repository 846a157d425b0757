// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "time"

// processorTime is not implemented on this system.
func processorTime() time.Duration { return 0 }
