// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// rates are the numbers of jiffies in a second that kernels have.
var rates = []int{100, 250, 300, 1000}

// MeasureHZ measures the number of jiffies in a second. Kernels do not report it, but only a
// few values exist, so a short measurement is enough. The first one holds for the process.
func MeasureHZ() (int, error) {
	measured.Lock()
	defer measured.Unlock()
	if measured.hz != 0 {
		return measured.hz, nil
	}
	clock, err := Open()
	if err != nil {
		return 0, err
	}
	defer clock.Close()
	hz, err := clock.measure()
	if err == nil {
		measured.hz = hz
	}
	return hz, err
}

var measured struct {
	sync.Mutex
	hz int
}

// measure reads jiffies until only one rate is possible, or for two seconds.
func (c *Clock) measure() (int, error) {
	first, err := c.read()
	for err == nil {
		time.Sleep(30 * time.Millisecond)
		var now reading
		if now, err = c.read(); err != nil {
			break
		}
		ticks := int(now.jiffies - first.jiffies)
		least, most := now.before.Sub(first.after), now.after.Sub(first.before)
		if possible := possibleRates(ticks, least, most); len(possible) == 1 {
			return possible[0], nil
		}
		if least > 2*time.Second {
			return int(math.Round(float64(ticks) / most.Seconds())), nil
		}
	}
	return 0, err
}

// lag is how late the kernel may count ticks: the processor that does it may be one that a hypervisor has stopped.
const lag = 20 * time.Millisecond

// possibleRates returns the rates at which a clock ticks n times in a time between least and most. Each of the two readings
// may lack the ticks of up to lag.
func possibleRates(n int, least, most time.Duration) (possible []int) {
	for _, hz := range rates {
		if float64(n-1) < (most+lag).Seconds()*float64(hz) && float64(n+1) > (least-lag).Seconds()*float64(hz) {
			possible = append(possible, hz)
		}
	}
	return possible
}

// reading is what jiffies were at some time between before and after. A busy machine may interrupt it.
type reading struct {
	jiffies       uint32
	before, after time.Time
}

func (c *Clock) read() (r reading, err error) {
	r.before = time.Now()
	r.jiffies, err = c.Jiffies()
	r.after = time.Now()
	return r, err
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
