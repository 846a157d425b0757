// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// The kinds of attempts.
const (
	// TCP opens a connection, and expects the answer of a Server.
	TCP = "tcp"
	// UDP sends datagrams, and expects the answer of a Server.
	UDP = "udp"
	// Connect opens a TCP connection to any server. Refused is an answer, too.
	Connect = "connect"
)

// Target is where a client tries to get an answer. Its text, such as tcp/[fd00::1]:7000, is an argument of the client.
type Target struct {
	// Kind is TCP, UDP or Connect.
	Kind string
	// Host is an address or a name.
	Host string
	Port uint16
}

// String returns the text that ParseTarget reads.
func (t Target) String() string { return t.Kind + "/" + t.address() }

func (t Target) address() string { return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))) }

// maxName is the largest length of a DNS name.
const maxName = 253

// ParseTarget parses the text of a Target.
func ParseTarget(text string) (Target, error) {
	kind, rest, _ := strings.Cut(text, "/")
	if kind != TCP && kind != UDP && kind != Connect {
		return Target{}, fmt.Errorf("target %q: begin with tcp/, udp/ or connect/", text)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return Target{}, fmt.Errorf("target %q: want KIND/HOST:PORT: %w", text, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Target{}, fmt.Errorf("target %q: want a port from 1 to 65535", text)
	}
	if !isHost(host) {
		return Target{}, fmt.Errorf("target %q: want an address or a DNS name", text)
	}
	return Target{Kind: kind, Host: host, Port: uint16(n)}, nil
}

// isHost reports whether a text is an address, or may be a DNS name.
func isHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host != "" && len(host) <= maxName && !strings.ContainsFunc(host, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.'
	})
}

// State says how an attempt ended.
type State string

// The states of attempts.
const (
	// Answered means that a Server answered; of Connect, that a connection was accepted.
	Answered State = "answered"
	// Refused means that the host is reached, but nothing listens there.
	Refused State = "refused"
	// Timeout means that nothing came back.
	Timeout State = "timeout"
	// Lookup means that the name was not resolved.
	Lookup State = "lookup"
	// Failed is any other end, such as a missing route.
	Failed State = "failed"
)

// Answer is the end of an attempt.
type Answer struct {
	Target string `json:"target"`
	State  State  `json:"state"`
	// Server is the name of the Server that answered, and Client the address that it saw.
	Server string     `json:"server,omitempty"`
	Client netip.Addr `json:"client,omitzero"`
	// Error describes the end, unless it is Answered. Resolver is the DNS server that had no answer.
	Error    string `json:"error,omitempty"`
	Resolver string `json:"resolver,omitempty"`
}
