// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// States of sockets, of linux/tcp_states.h. An unconnected UDP socket is in state closed.
const (
	stateClose  = 7
	stateListen = 10
)

// Listening lists where processes of this network namespace accept connections or datagrams; it
// implements dataplane.SocketLister. It omits connected UDP sockets, because connection
// tracking knows their packets.
func Listening() (all []model.HostPort, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for protocol, state := range map[model.Protocol]int{model.TCP: stateListen, model.UDP: stateClose} {
			found, err := dumpSockets(family, protocol, state)
			if err != nil {
				return nil, fmt.Errorf("list %s sockets of the node: %w: the kernel needs the modules tcp_diag and udp_diag", protocol, err)
			}
			all = append(all, found...)
		}
	}
	text, err := os.ReadFile("/proc/thread-self/net/sctp/eps")
	if errors.Is(err, os.ErrNotExist) {
		return all, nil // the kernel has no SCTP
	}
	if err != nil {
		return nil, fmt.Errorf("list SCTP sockets of the node: %w", err)
	}
	return append(all, parseEndpoints(string(text))...), nil
}

// diagRequest is struct inet_diag_req_v2 of linux/inet_diag.h: family and protocol, two bytes,
// the states as bits, and a socket ID that stays zero.
type diagRequest struct {
	family, protocol uint8
	state            int
}

// Len implements nl.NetlinkRequestData.
func (diagRequest) Len() int { return 56 }

// Serialize implements nl.NetlinkRequestData.
func (r diagRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1] = r.family, r.protocol
	binary.NativeEndian.PutUint32(b[4:], 1<<r.state)
	return b
}

func dumpSockets(family uint8, protocol model.Protocol, state int) ([]model.HostPort, error) {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddData(diagRequest{family, uint8(protocol), state})
	messages, err := link.Whole(func() ([][]byte, error) { return request.Execute(unix.NETLINK_INET_DIAG, 0) })
	if err != nil {
		return nil, err
	}
	var all []model.HostPort
	for _, m := range messages {
		h, ok, err := parseSocket(m)
		if err != nil {
			return nil, err
		}
		if ok {
			h.Protocol = protocol
			all = append(all, h)
		}
	}
	return all, nil
}

// sizeofSocket is that of struct inet_diag_msg, in bytes; attributes follow.
const sizeofSocket = 72

// skV6Only is the attribute INET_DIAG_SKV6ONLY.
const skV6Only = 11

// parseSocket decodes a struct inet_diag_msg: family(1) state(1) pad(2) source port(2)
// destination port(2) source(16) destination(16) ..., ports and addresses in network order. A
// socket without a port receives nothing.
func parseSocket(m []byte) (h model.HostPort, ok bool, err error) {
	if len(m) < sizeofSocket {
		return h, false, fmt.Errorf("a socket has %d bytes, want %d", len(m), sizeofSocket)
	}
	h.Number = binary.BigEndian.Uint16(m[4:])
	if m[0] == unix.AF_INET {
		h.Address = netip.AddrFrom4([4]byte(m[8:12]))
		return h, h.Number != 0, nil
	}
	h.Address = netip.AddrFrom16([16]byte(m[8:24])).Unmap()
	attributes, err := nl.ParseRouteAttr(m[sizeofSocket:])
	if err != nil {
		return h, false, fmt.Errorf("read attributes of a socket: %w", err)
	}
	only := false
	for _, a := range attributes {
		only = only || a.Attr.Type == skV6Only && len(a.Value) > 0 && a.Value[0] != 0
	}
	if h.Address == netip.IPv6Unspecified() && !only {
		h.Address = netip.Addr{} // accepts IPv4, too
	}
	return h, h.Number != 0, nil
}

// parseEndpoints parses /proc/net/sctp/eps: ENDPT SOCK STY SST HBKT LPORT UID INODE and the
// addresses. SST is the state of the socket.
func parseEndpoints(text string) (all []model.HostPort) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 9 || f[3] != strconv.Itoa(stateListen) {
			continue
		}
		port, err := strconv.ParseUint(f[5], 10, 16)
		if err != nil || port == 0 {
			continue
		}
		for _, text := range f[8:] {
			if a, err := netip.ParseAddr(text); err == nil {
				all = append(all, model.HostPort{Address: a.Unmap(), Number: uint16(port), Protocol: model.SCTP})
			}
		}
	}
	return all
}
