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

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Where sysctls under net are: in a container that is not privileged the first
// is read-only, and the second is the same directory of the host, mounted by
// whoever installs. Both show the network namespace of the thread that looks.
const (
	sysctls     = "/proc/sys/net"
	hostMounted = "/host/proc/sys/net"
)

// setting is one sysctl under net, and its value.
type setting struct{ path, value string }

// write sets sysctls of the current thread's network namespace. A family that
// the kernel does not have is passed over.
func write(settings []setting) error {
	for _, s := range settings {
		path := filepath.Join(sysctls, s.path)
		if now, err := os.ReadFile(path); err == nil && string(now) == s.value+"\n" {
			continue
		} else if errors.Is(err, os.ErrNotExist) {
			continue
		}
		err := os.WriteFile(path, []byte(s.value), 0o644)
		if errors.Is(err, unix.EROFS) {
			if mounted := os.WriteFile(filepath.Join(hostMounted, s.path), []byte(s.value), 0o644); !errors.Is(mounted, os.ErrNotExist) {
				err = mounted
			}
		}
		if err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", path, s.value, err)
		}
	}
	return nil
}

// hostSysctls prepares the host's end of a pair: it forwards, and takes no
// configuration from the pod. Source addresses are checked by the programs.
func hostSysctls(name string) error {
	return write([]setting{
		{"ipv4/conf/" + name + "/forwarding", "1"},
		{"ipv4/conf/" + name + "/rp_filter", "0"},
		{"ipv4/conf/" + name + "/accept_redirects", "0"},
		{"ipv4/conf/" + name + "/send_redirects", "0"},
		{"ipv6/conf/" + name + "/disable_ipv6", "0"},
		{"ipv6/conf/" + name + "/forwarding", "1"},
		{"ipv6/conf/" + name + "/accept_ra", "0"},
		{"ipv6/conf/" + name + "/accept_dad", "0"},
	})
}

// podSysctls prepares the pod's end: no address is made up for it, none is
// taken from advertisements.
func podSysctls(ns netns.NsHandle, name string, ips []netip.Addr) error {
	if !slices.ContainsFunc(ips, netip.Addr.Is6) {
		return nil
	}
	return inNetNS(ns, func() error {
		return write([]setting{
			{"ipv6/conf/" + name + "/disable_ipv6", "0"},
			{"ipv6/conf/" + name + "/accept_ra", "0"},
			{"ipv6/conf/" + name + "/accept_dad", "0"},
		})
	})
}

// inNetNS calls f on a thread that is in the namespace.
func inNetNS(ns netns.NsHandle, f func() error) error {
	done := make(chan error)
	go func() {
		// The thread is not unlocked: it ends with the goroutine and does not
		// come back in the wrong namespace.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Forwarding makes the node forward between its uplink and pods. Without IPv6
// addresses nothing is changed for IPv6; with them, router advertisements that
// the uplink listened to so far are still listened to.
func Forwarding(uplink string, v6 bool) error {
	settings := []setting{{"ipv4/conf/" + uplink + "/forwarding", "1"}}
	if v6 {
		ra := filepath.Join(sysctls, "ipv6/conf", uplink, "accept_ra")
		if now, err := os.ReadFile(ra); err == nil && string(now) == "1\n" {
			settings = append(settings, setting{"ipv6/conf/" + uplink + "/accept_ra", "2"})
		}
		settings = append(settings, setting{"ipv6/conf/all/forwarding", "1"})
	}
	return write(settings)
}
