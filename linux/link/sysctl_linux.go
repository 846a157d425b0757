// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
)

// The directories of sysctls under net. In an unprivileged container the first is read-only;
// the second is the same directory of the host, which the manifest mounts. Both show the
// network namespace of the calling thread.
const (
	sysctls     = "/proc/sys/net"
	hostMounted = "/host/proc/sys/net"
)

// Sysctl is a setting under /proc/sys/net, and its value.
type Sysctl struct{ Path, Value string }

// WriteSysctls sets sysctls of the current thread's network namespace. It skips an IP version
// that the kernel does not have.
func WriteSysctls(settings []Sysctl) error {
	for _, s := range settings {
		path := filepath.Join(sysctls, s.Path)
		if now, err := os.ReadFile(path); err == nil && string(now) == s.Value+"\n" {
			continue
		} else if errors.Is(err, os.ErrNotExist) {
			continue
		}
		err := os.WriteFile(path, []byte(s.Value), 0o644)
		if errors.Is(err, unix.EROFS) {
			if mounted := os.WriteFile(filepath.Join(hostMounted, s.Path), []byte(s.Value), 0o644); !errors.Is(mounted, os.ErrNotExist) {
				err = mounted
			}
		}
		if err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", path, s.Value, err)
		}
	}
	return nil
}

// CheckSysctls describes settings with another value, in the current thread's network
// namespace.
func CheckSysctls(settings []Sysctl) (problems []string) {
	for _, s := range settings {
		now, err := os.ReadFile(filepath.Join(sysctls, s.Path))
		if value := strings.TrimSuffix(string(now), "\n"); err == nil && value != s.Value {
			problems = append(problems, fmt.Sprintf("sysctl net/%s is %s, not %s", s.Path, value, s.Value))
		}
	}
	return problems
}

// HostSysctls prepare the host end of a pair: it forwards, and accepts no configuration from
// the pod. The programs check source addresses.
func HostSysctls(name string) []Sysctl {
	return []Sysctl{
		{"ipv4/conf/" + name + "/forwarding", "1"},
		{"ipv4/conf/" + name + "/rp_filter", "0"},
		{"ipv4/conf/" + name + "/accept_redirects", "0"},
		{"ipv4/conf/" + name + "/send_redirects", "0"},
		{"ipv6/conf/" + name + "/disable_ipv6", "0"},
		{"ipv6/conf/" + name + "/forwarding", "1"},
		{"ipv6/conf/" + name + "/accept_ra", "0"},
		{"ipv6/conf/" + name + "/accept_dad", "0"},
	}
}

// AcceptLoopback lets the host end of a pair take part in connections from the node's loopback
// addresses to host ports of the pod. It then also accepts packets from the pod to loopback
// addresses, which another component must drop.
func AcceptLoopback(id model.EndpointID) error { return setLoopback(HostName(id), "1") }

// RefuseLoopback reverses AcceptLoopback for all pairs except those of some endpoints.
func RefuseLoopback(except map[model.EndpointID]bool) error {
	found, err := List()
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range found {
		if !except[f.ID] {
			errs = append(errs, setLoopback(f.Name, "0"))
		}
	}
	return errors.Join(errs...)
}

func setLoopback(name, value string) error {
	return WriteSysctls([]Sysctl{{"ipv4/conf/" + name + "/route_localnet", value}})
}

// podSysctls prepare the pod's end, in its namespace: the kernel generates no address for it,
// and takes none from advertisements.
func podSysctls(name string, ips []netip.Addr) []Sysctl {
	if !slices.ContainsFunc(ips, netip.Addr.Is6) {
		return nil
	}
	return []Sysctl{
		{"ipv6/conf/" + name + "/disable_ipv6", "0"},
		{"ipv6/conf/" + name + "/accept_ra", "0"},
		{"ipv6/conf/" + name + "/accept_dad", "0"},
	}
}

// inNetNS calls f while this thread is in the namespace. Starting and ending a separate thread
// would cost more than f.
func inNetNS(ns netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	defer func() {
		if err := netns.Set(own); err != nil {
			// Further calls of this thread would change the pod.
			panic(fmt.Sprintf("return to the node's network namespace: %v", err))
		}
	}()
	return f()
}
