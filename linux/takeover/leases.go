// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Lease is an address that host-local assigned.
type Lease struct {
	IP          netip.Addr
	ContainerID string
	IfName      string
}

// The bounds of host-local's files.
const (
	maxLeases = 1 << 16
	maxLease  = 4 << 10 // bytes
)

// ReadLeases reads host-local's directory of one network. A file is named by an address, with an underscore
// for each colon on some versions, and holds the container ID and the name of the interface. Other files
// are its lock and the last address of each range.
func ReadLeases(dir string) ([]Lease, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the addresses that host-local assigned: %w", err)
	}
	if len(entries) > maxLeases {
		return nil, fmt.Errorf("directory %s has %d files, more than %d", dir, len(entries), maxLeases)
	}
	var all []Lease
	for _, e := range entries {
		ip, err := netip.ParseAddr(strings.ReplaceAll(e.Name(), "_", ":"))
		if err != nil {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if info, err := e.Info(); err != nil || !info.Mode().IsRegular() || info.Size() > maxLease {
			return nil, fmt.Errorf("file %s is not one of host-local", path)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the addresses that host-local assigned: %w", err)
		}
		l, err := parseLease(ip, text)
		if err != nil {
			return nil, fmt.Errorf("file %s: %w", path, err)
		}
		all = append(all, l)
	}
	return all, nil
}

// parseLease parses the content of a file: the container ID and, since version 0.7, the interface.
func parseLease(ip netip.Addr, text []byte) (Lease, error) {
	l := Lease{IP: ip.Unmap(), IfName: "eth0"}
	words := strings.Fields(string(text))
	if len(words) == 0 || len(words) > 2 {
		return l, fmt.Errorf("it has %d words, not a container ID and an interface", len(words))
	}
	l.ContainerID = words[0]
	if len(words) == 2 {
		l.IfName = words[1]
	}
	if len(l.ContainerID) > 256 || len(l.IfName) > 15 || strings.ContainsAny(l.ContainerID+l.IfName, "/:") {
		return l, fmt.Errorf("%q is not a container ID and an interface", strings.Join(words, " "))
	}
	return l, nil
}

// parseResult reads the file in which libcni keeps the result of ADD: the container ID, and whether the
// runtime requested host ports.
func parseResult(text []byte) (containerID string, hostPorts bool) {
	var kept struct {
		ContainerID string `json:"containerId"`
		Arguments   struct {
			Ports []json.RawMessage `json:"portMappings"`
		} `json:"capabilityArgs"`
	}
	if json.Unmarshal(text, &kept) != nil {
		return "", false
	}
	return kept.ContainerID, kept.ContainerID != "" && len(kept.Arguments.Ports) > 0
}
