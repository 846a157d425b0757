// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespaces returns a path of each network namespace to which the node's namespace gave a number. A path
// under which a runtime mounted it comes before that of a process.
func namespaces(h *netlink.Handle) (map[int]string, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	all, known := make(map[int]string), make(map[uint64]bool)
	for _, path := range append(mounted(string(text)), paths...) {
		var s unix.Stat_t
		if unix.Stat(path, &s) != nil || known[s.Ino] {
			continue
		}
		ns, err := netns.GetFromPath(path)
		if err != nil {
			continue // the process ended meanwhile
		}
		number, err := h.GetNetNsIdByFd(int(ns))
		ns.Close()
		if err == nil && number >= 0 {
			all[number], known[s.Ino] = path, true
		}
	}
	return all, nil
}

// mounted returns the mount points of network namespaces in /proc/self/mountinfo (proc(5)). The root of such
// a mount is net:[INODE].
func mounted(info string) (paths []string) {
	for line := range strings.Lines(info) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[3], "net:[") {
			paths = append(paths, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4]))
		}
	}
	return paths
}

// handleAt opens netlink in a network namespace.
func handleAt(path string) (*netlink.Handle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return h, nil
}
