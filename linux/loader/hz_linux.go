// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// measureHZ finds out how many jiffies a second has. Kernels do not tell, but
// only a few values exist, so that a short look at the clock is enough.
func measureHZ() (int, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "jiffies",
		Type:         ebpf.SchedCLS,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.FnJiffies64.Call(), asm.Return()},
	})
	if err != nil {
		return 0, err
	}
	defer prog.Close()
	in := make([]byte, 14)
	start := time.Now()
	first, err := prog.Run(&ebpf.RunOptions{Data: in})
	if err != nil {
		return 0, err
	}
	for {
		time.Sleep(30 * time.Millisecond)
		now, err := prog.Run(&ebpf.RunOptions{Data: in})
		if err != nil {
			return 0, err
		}
		rate := float64(now-first) / time.Since(start).Seconds()
		// The next higher and lower rates are at least 17 % away.
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
