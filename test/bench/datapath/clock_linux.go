// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// prefer gives the calling thread, which must be locked, real-time priority on one CPU, so that
// other processes do not distort the figures.
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

// rest yields the CPU after a measurement: the kernel stops real-time threads that run for more
// than 95 % of a second.
func rest(used time.Duration) { time.Sleep(used/8 + time.Millisecond) }

// waiting is the time that threads waited for a CPU in use by another thread.
type waiting struct{ sum atomic.Int64 }

// during adds what the calling thread, which must be locked, waits while f runs.
func (w *waiting) during(f func() error) error {
	before, err := waited()
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := waited()
	w.sum.Add(int64(after - before))
	return err
}

// waited reads that time for the calling thread, since the start of the thread.
func waited() (time.Duration, error) {
	const path = "/proc/thread-self/schedstat"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var ran, waited time.Duration
	if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return waited, nil
}

// undisturbed repeats a measurement if its threads waited for a third of the time. Then another
// process with real-time priority ran, such as a second instance of this command, and may have
// caused lost packets. The kernel itself reserves 50 ms of each second for other processes.
func undisturbed(lasts time.Duration, measure func(*waiting) (figure, error)) (figure, error) {
	for range 20 {
		var w waiting
		f, err := measure(&w)
		if err != nil || time.Duration(w.sum.Load()) < lasts/3 {
			return f, err
		}
	}
	return nil, errors.New("others use the CPUs at real-time priority all the time: run one benchmark at a time")
}
