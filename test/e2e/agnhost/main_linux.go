// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// kubernetesProgram is the program of Kubernetes.
const kubernetesProgram = "/agnhost-kubernetes"

// portPrefix starts the names of variables that give porter the ports of SCTP.
const portPrefix = "SERVE_SCTP_PORT_"

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "porter" {
		if ports, err := sctpPorts(os.Environ()); err != nil || len(ports) > 0 {
			fail("OTHER", orServe(ports, err))
		}
	}
	if to, patience, ok := sctpTarget(args); ok {
		connect(to, patience)
		return
	}
	fail("OTHER", syscall.Exec(kubernetesProgram, append([]string{kubernetesProgram}, args...), os.Environ()))
}

// fail ends the program as agnhost does.
func fail(kind string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", kind, err)
	os.Exit(1)
}

// sctpPorts returns the ports of SCTP in the environment of porter.
func sctpPorts(environ []string) (ports []uint16, err error) {
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		text, ok := strings.CutPrefix(name, portPrefix)
		if !ok {
			continue
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("variable %s: %q is not a port", name, text)
		}
		ports = append(ports, uint16(port))
	}
	return ports, nil
}

// orServe answers SCTP until it is killed. It returns only with an error.
func orServe(ports []uint16, err error) error {
	if err != nil {
		return err
	}
	servers := &traffic.Servers{}
	for _, port := range ports {
		for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if err := servers.SCTP(nil, netip.AddrPortFrom(all, port), func(netip.Addr) []byte { return nil }); err != nil {
				return err
			}
		}
	}
	select {}
}

// sctpTarget parses "connect --protocol=sctp"; ok is false for other commands.
func sctpTarget(args []string) (to string, patience time.Duration, ok bool) {
	if len(args) == 0 || args[0] != "connect" {
		return "", 0, false
	}
	patience = time.Second
	for _, arg := range args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case name == "--protocol":
			ok = value == "sctp"
		case name == "--timeout":
			if d, err := time.ParseDuration(value); err == nil {
				patience = d
			}
		case !strings.HasPrefix(arg, "--"):
			to = arg
		}
	}
	return to, patience, ok
}

// connect sends an INIT and waits for its answer.
func connect(to string, patience time.Duration) {
	resolved, err := net.ResolveTCPAddr("tcp", to)
	if err != nil {
		fail("DNS", err)
	}
	a := resolved.AddrPort()
	flow := traffic.Flow{From: netip.IPv4Unspecified(), To: netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), Protocol: model.SCTP}
	if flow.To.Addr().Is6() {
		flow.From = netip.IPv6Unspecified()
	}
	switch _, err := flow.Init(patience); {
	case err == nil:
	case traffic.Silent(err):
		fmt.Fprintln(os.Stderr, "TIMEOUT")
		os.Exit(1)
	default:
		fail("OTHER", err)
	}
}
