// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// measureHZ measures the number of jiffies in a second. Kernels do not report it, but only a
// few values exist, so a short measurement is enough.
func measureHZ() (int, error) {
	prog, err := newClock()
	if err != nil {
		return 0, err
	}
	defer prog.Close()
	start := time.Now()
	first, err := jiffies(prog)
	if err != nil {
		return 0, err
	}
	for {
		time.Sleep(30 * time.Millisecond)
		now, err := jiffies(prog)
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

// newClock loads a program that reads jiffies, the clock by which the programs record when a
// flow was last seen.
func newClock() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "jiffies",
		Type:         ebpf.SchedCLS,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.FnJiffies64.Call(), asm.Return()},
	})
}

// jiffies returns the low 32 bits of the kernel's jiffies.
func jiffies(clock *ebpf.Program) (uint32, error) {
	return clock.Run(&ebpf.RunOptions{Data: make([]byte, 14)})
}
