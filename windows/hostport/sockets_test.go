// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// rowOf returns a row of a table by the structures of iphlpapi.h. Members that do not count have bytes that are not zero.
func (t table) rowOf(address string, port uint16) []byte {
	other := []byte{0xa5, 0xa5, 0xa5, 0xa5} // a DWORD
	local := netip.MustParseAddr(address).AsSlice()
	number := append(binary.BigEndian.AppendUint16(nil, port), 0xa5, 0xa5)
	remote := slices.Repeat([]byte{0xa5}, len(local))
	switch {
	case t.protocol == model.TCP && t.v6: // ucLocalAddr dwLocalScopeId dwLocalPort ucRemoteAddr dwRemoteScopeId dwRemotePort dwState dwOwningPid
		return slices.Concat(local, other, number, remote, other, other, other, other)
	case t.protocol == model.TCP: // dwState dwLocalAddr dwLocalPort dwRemoteAddr dwRemotePort dwOwningPid
		return slices.Concat(other, local, number, remote, other, other)
	case t.v6: // ucLocalAddr dwLocalScopeId dwLocalPort dwOwningPid
		return slices.Concat(local, other, number, other)
	}
	return slices.Concat(local, number, other) // dwLocalAddr dwLocalPort dwOwningPid
}

// TestParseTables checks the sockets of tables of each kind, and that tables that are too short are refused. test/wine reads those of
// Windows (TestHostPortOfTheNode).
func TestParseTables(t *testing.T) {
	for _, of := range tables {
		addresses := map[string]string{"0.0.0.0": "0.0.0.0", "127.0.0.1": "127.0.0.1", "172.30.0.11": "172.30.0.11"}
		if of.v6 {
			addresses = map[string]string{"::": "invalid IP", "::1": "::1", "fd00::b": "fd00::b", "::ffff:192.0.2.1": "192.0.2.1"}
		}
		for in, want := range addresses {
			raw := binary.LittleEndian.AppendUint32(nil, 2)
			raw = append(raw, of.rowOf(in, 5985)...)
			raw = append(raw, of.rowOf(in, 0)...)
			got, err := of.parse(append(raw, 1, 2, 3)) // the buffer may be larger
			if err != nil || len(got) != 1 || got[0].Number != 5985 || got[0].Protocol != of.protocol || got[0].Address.String() != want {
				t.Errorf("%+v: %v, %v", of, got, err)
			}
			if host := (model.HostPort{Protocol: of.protocol, Number: 5985}); err == nil && len(got) == 1 && host.TakenBy(got[0]) == got[0].Address.IsLoopback() {
				t.Errorf("%v takes %v: %t", got[0], host, host.TakenBy(got[0]))
			}
			for n := range len(raw) {
				if _, err := of.parse(raw[:n]); err == nil {
					t.Fatalf("%d of %d bytes are accepted", n, len(raw))
				}
			}
		}
	}
}
