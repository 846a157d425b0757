// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time of the agent's process, including threads that have ended.
func (n *Node) CPUTime() (time.Duration, error) {
	pid := n.PID()
	var used unix.Timespec
	// The clock ID of another process, computed as clock_getcpuclockid(3) does.
	if err := unix.ClockGettime(int32(^pid<<3|2), &used); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// Memory reads the memory of the agent's process in MiB, by field of /proc/PID/status.
func (n *Node) Memory() (map[string]float64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := make(map[string]float64)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		var kib float64
		if n, _ := fmt.Sscanf(rest, "%f kB", &kib); n == 1 {
			found[name] = kib / 1024
		}
	}
	return found, lines.Err()
}
