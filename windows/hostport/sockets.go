// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// table is the layout of a table of sockets of IP Helper: a number of rows in four bytes of the host's order, then the rows. Each
// has an address, and a port in network order in the first two of four bytes.
type table struct {
	protocol model.Protocol
	v6       bool
	// size is that of a row; address and port are offsets in it.
	size, address, port int
}

// The tables that name the process of each socket, the only ones for both families: MIB_TCPROW_OWNER_PID, MIB_TCP6ROW_OWNER_PID,
// MIB_UDPROW_OWNER_PID and MIB_UDP6ROW_OWNER_PID.
var tables = []table{
	{model.TCP, false, 24, 4, 8},
	{model.TCP, true, 56, 0, 20},
	{model.UDP, false, 12, 0, 4},
	{model.UDP, true, 28, 0, 20},
}

// parse returns the sockets of a table. One at the unspecified address of IPv6 may accept IPv4, too: the table does not say.
func (t table) parse(raw []byte) ([]model.HostPort, error) {
	if len(raw) < 4 {
		return nil, fmt.Errorf("a table of sockets has %d bytes, want 4 or more", len(raw))
	}
	n, rows := int(binary.LittleEndian.Uint32(raw)), raw[4:]
	if n > len(rows)/t.size {
		return nil, fmt.Errorf("a table of sockets has %d bytes, want %d rows of %d", len(raw), n, t.size)
	}
	all := make([]model.HostPort, 0, n)
	for ; n > 0; n-- {
		row := rows[:t.size]
		rows = rows[t.size:]
		h := model.HostPort{Protocol: t.protocol, Number: binary.BigEndian.Uint16(row[t.port:])}
		if h.Number == 0 {
			continue
		}
		if t.v6 {
			h.Address = netip.AddrFrom16([16]byte(row[t.address:])).Unmap()
		} else {
			h.Address = netip.AddrFrom4([4]byte(row[t.address:]))
		}
		if h.Address == netip.IPv6Unspecified() {
			h.Address = netip.Addr{}
		}
		all = append(all, h)
	}
	return all, nil
}
