// SPDX-License-Identifier: Apache-2.0

package dirlock

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// holder returns the process that holds the lock, as /proc/locks shows it. A process in another PID
// namespace, such as an agent in another container, does not appear there.
func holder(dir string) string {
	const hidden = "another process that is not visible in this PID namespace"
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		return hidden
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return hidden
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 4711 00:1b:1234 0 EOF
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		name, err := os.ReadFile("/proc/" + f[4] + "/comm")
		if err != nil {
			name = []byte("unknown")
		}
		return fmt.Sprintf("process %s (%s)", f[4], strings.TrimSpace(string(name)))
	}
	return hidden
}
