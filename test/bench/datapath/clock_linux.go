// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// prefer gives the calling thread, which must be locked, real-time priority on
// one CPU: other processes would be measured otherwise.
func prefer(cpu int) error {
	if err := pin(cpu); err != nil {
		return err
	}
	return schedule(unix.SCHED_FIFO, 10)
}

func pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("run on CPU %d: %w", cpu, err)
	}
	return nil
}

func schedule(policy, priority uint32) error {
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority}, 0); err != nil {
		return fmt.Errorf("take real-time priority: %w", err)
	}
	return nil
}

// rest leaves the CPU to others for a while after it was used for so long: the
// kernel stops real-time threads that run for more than 95 % of a second.
func rest(used time.Duration) { time.Sleep(used/8 + time.Millisecond) }
