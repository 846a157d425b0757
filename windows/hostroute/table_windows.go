// SPDX-License-Identifier: Apache-2.0

package hostroute

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
)

// System is the routing table of this host, through the IP Helper API.
type System struct{}

// iphlpapi.dll has both procedures since Windows Vista.
var (
	iphlpapi   = windows.NewLazySystemDLL("iphlpapi.dll")
	initialize = iphlpapi.NewProc("InitializeIpForwardEntry")
	create     = iphlpapi.NewProc("CreateIpForwardEntry2")
)

// Routes implements Table by GetIpForwardTable2.
func (System) Routes() ([]Route, error) {
	var table *windows.MibIpForwardTable2
	if err := windows.GetIpForwardTable2(windows.AF_UNSPEC, &table); err != nil {
		return nil, fmt.Errorf("GetIpForwardTable2: %w", err)
	}
	defer windows.FreeMibTable(unsafe.Pointer(table))
	var list []Route
	for _, row := range table.Rows() {
		to, hop := address(&row.DestinationPrefix.Prefix), address(&row.NextHop)
		if !to.IsValid() || !hop.IsValid() {
			continue
		}
		p := netip.PrefixFrom(to, int(row.DestinationPrefix.PrefixLength))
		list = append(list, Route{Destination: p, NextHop: hop, Interface: row.InterfaceIndex, Metric: row.Metric})
	}
	return list, nil
}

// Add implements Table by CreateIpForwardEntry2.
func (System) Add(r Route) error {
	for _, p := range []*windows.LazyProc{initialize, create} {
		if err := p.Find(); err != nil {
			return err
		}
	}
	var row windows.MibIpForwardRow2
	_, _, _ = initialize.Call(uintptr(unsafe.Pointer(&row))) // has no result
	row.InterfaceIndex, row.Metric = r.Interface, r.Metric
	row.Protocol = windows.MIB_IPPROTO_NETMGMT
	row.DestinationPrefix.PrefixLength = uint8(r.Destination.Bits())
	put(&row.DestinationPrefix.Prefix, r.Destination.Addr())
	put(&row.NextHop, r.NextHop)
	code, _, _ := create.Call(uintptr(unsafe.Pointer(&row)))
	if err := windows.Errno(code); err != 0 && !errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
		return fmt.Errorf("CreateIpForwardEntry2: %w", err)
	}
	return nil
}

// address converts a SOCKADDR_INET; it returns the invalid Addr for other families.
func address(s *windows.RawSockaddrInet) netip.Addr {
	switch s.Family {
	case windows.AF_INET:
		return netip.AddrFrom4((*windows.RawSockaddrInet4)(unsafe.Pointer(s)).Addr)
	case windows.AF_INET6:
		return netip.AddrFrom16((*windows.RawSockaddrInet6)(unsafe.Pointer(s)).Addr)
	}
	return netip.Addr{}
}

func put(s *windows.RawSockaddrInet, a netip.Addr) {
	if a.Is4() {
		v4 := (*windows.RawSockaddrInet4)(unsafe.Pointer(s))
		v4.Family, v4.Addr = windows.AF_INET, a.As4()
		return
	}
	v6 := (*windows.RawSockaddrInet6)(unsafe.Pointer(s))
	v6.Family, v6.Addr = windows.AF_INET6, a.As16()
}
