// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// A pod uses one source port for a flow to a Service and for one to its backend, in either order. Without the fast path, the
// host stack replaces the port of the second flow, because both have the same addresses and ports after DNAT. It must do so
// here too. The backend may only answer.
func TestSourcePortOfServiceAndBackend(t *testing.T) {
	t.Parallel()
	for _, serviceFirst := range []bool{true, false} {
		name := fmt.Sprintf("serviceFirst=%t", serviceFirst)
		t.Run("hooks/"+name, func(t *testing.T) {
			l := newServiceLab(t)
			l.sourcePorts("b", [2]string{"10.1.0.12", "fd01::c"}, serviceFirst, l.apply)
		})
		t.Run("rule/"+name, func(t *testing.T) {
			l := newServiceLab(t)
			l.byRule = true
			l.renew()
			l.sourcePorts("b", [2]string{"10.1.0.12", "fd01::c"}, serviceFirst, l.apply)
		})
		t.Run("other node/"+name, func(t *testing.T) {
			n := newNodes(t, nil)
			n[0].pod("a", 11)
			n[1].echo(n[1].pod("server", 139), 8080)
			for version, to := range map[string][]any{"ip": {service4, "10.1.0.139:8080", nodeAddr4}, "ip6": {service6, "[fd01::8b]:8080", nodeAddr6}} {
				n[0].load(fmt.Sprintf(rules, version, to[0], to[1], to[1], to[1], to[2], to[2]))
			}
			n[0].sourcePorts("server", [2]string{"10.1.0.139", "fd01::8b"}, serviceFirst, n.apply)
		})
		t.Run("foreign/"+name, func(t *testing.T) {
			onForeign(t, func(t *testing.T, l *lab) {
				serviceLab(t, l)
				l.sourcePorts("b", [2]string{"10.1.0.12", "fd01::c"}, serviceFirst, l.apply)
			})
		})
	}
}

// sourcePorts opens both flows of pod a from one port, for each protocol and IP version, and uses both. Then a change of policy
// evaluates them again.
func (l *lab) sourcePorts(server string, backends [2]string, serviceFirst bool, apply func(...*model.Policy)) {
	l.t.Helper()
	isolated := []*model.Policy{isolate("a", model.Ingress), isolate(server, model.Egress), isolate("a", model.Egress, accept(pods(server)))}
	apply(append(isolated, isolate(server, model.Ingress, accept(pods("a"))))...)
	var open []net.Conn
	for i, backend := range backends {
		to := []string{net.JoinHostPort(backend, "8080"), net.JoinHostPort(families[i].service, "80")}
		if serviceFirst {
			to[0], to[1] = to[1], to[0]
		}
		for _, network := range []string{"tcp", "udp"} {
			for _, addr := range to {
				began := time.Now()
				c := l.dialShared(network, 30000, addr)
				open = append(open, c)
				if took := time.Since(began); took > patience/4 {
					l.t.Errorf("%s %s opened after %v, want after one retransmission", network, addr, took)
				}
				if err := traffic.Exchange(c, patience); err != nil {
					l.t.Errorf("%s %s: %v", network, addr, err)
				}
			}
		}
	}
	l.goOn(open)
	apply(append(isolated, isolate(server, model.Ingress, accept(pods("a")), accept(block("10.7.0.0/16"))))...)
	l.goOn(open)
}

// dialShared opens a flow of pod a from a port that other flows use too.
func (l *lab) dialShared(network string, port int, to string) (c net.Conn) {
	l.t.Helper()
	d := net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}}
	d.LocalAddr = &net.TCPAddr{Port: port}
	if network == "udp" {
		d.LocalAddr = &net.UDPAddr{Port: port}
	}
	l.must(l.pods["a"].Do(func() (err error) {
		c, err = d.Dial(network, to)
		return err
	}))
	l.t.Cleanup(func() { c.Close() })
	return c
}
