// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"fmt"
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// MeasureHZ measures the number of jiffies in a second. Kernels do not report it, but only a
// few values exist, so a short measurement is enough.
func MeasureHZ() (int, error) {
	clock, err := Open()
	if err != nil {
		return 0, err
	}
	defer clock.Close()
	start := time.Now()
	first, err := clock.Jiffies()
	if err != nil {
		return 0, err
	}
	for {
		time.Sleep(30 * time.Millisecond)
		now, err := clock.Jiffies()
		if err != nil {
			return 0, err
		}
		rate := float64(now-first) / time.Since(start).Seconds()
		// The neighbouring rates differ by at least 17 %.
		for _, hz := range []int{100, 250, 300, 1000} {
			if now-first >= 6 && math.Abs(rate-float64(hz)) < 0.08*float64(hz) {
				return hz, nil
			}
		}
		if time.Since(start) > time.Second {
			return int(math.Round(rate)), nil
		}
	}
}

// Clock is a program that reads jiffies, the clock that the programs use to record when a flow was
// last seen.
type Clock struct{ program *ebpf.Program }

// Open loads the program.
func Open() (*Clock, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "jiffies",
		Type:         ebpf.SchedCLS,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.FnJiffies64.Call(), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("load the clock of flows: %w", err)
	}
	return &Clock{program}, nil
}

// Close removes the program.
func (c *Clock) Close() error { return c.program.Close() }

// Jiffies returns the low 32 bits of the kernel's jiffies.
func (c *Clock) Jiffies() (uint32, error) {
	now, err := c.program.Run(&ebpf.RunOptions{Data: make([]byte, 14)})
	if err != nil {
		return 0, fmt.Errorf("read the clock of flows: %w", err)
	}
	return now, nil
}
