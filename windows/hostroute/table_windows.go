// SPDX-License-Identifier: Apache-2.0

package hostroute

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
)

// System is the IP stack of this host, through the IP Helper API.
type System struct{}

var _ Stack = System{}

// iphlpapi.dll has all procedures since Windows Vista.
var (
	iphlpapi     = windows.NewLazySystemDLL("iphlpapi.dll")
	initialize   = iphlpapi.NewProc("InitializeIpForwardEntry")
	create       = iphlpapi.NewProc("CreateIpForwardEntry2")
	remove       = iphlpapi.NewProc("DeleteIpForwardEntry2")
	getInterface = iphlpapi.NewProc("GetIpInterfaceEntry")
	setInterface = iphlpapi.NewProc("SetIpInterfaceEntry")
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
		list = append(list, Route{Destination: p, NextHop: hop, Interface: row.InterfaceIndex, Metric: row.Metric, Protocol: row.Protocol})
	}
	return list, nil
}

// Add implements Table by CreateIpForwardEntry2.
func (System) Add(r Route) error {
	row, err := rowOf(r)
	if err != nil {
		return err
	}
	if err := call(create, unsafe.Pointer(row)); err != nil && !errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
		return err
	}
	return nil
}

// Remove implements Stack by DeleteIpForwardEntry2.
func (System) Remove(r Route) error {
	row, err := rowOf(r)
	if err != nil {
		return err
	}
	if err := call(remove, unsafe.Pointer(row)); err != nil && !errors.Is(err, windows.ERROR_NOT_FOUND) {
		return err
	}
	return nil
}

// Interfaces implements Stack by GetAdaptersAddresses and GetIpInterfaceEntry.
func (System) Interfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var list []Interface
	for _, n := range all {
		i := Interface{Index: uint32(n.Index), Name: n.Name, MTU: n.MTU}
		addresses, err := n.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of interface %q: %w", n.Name, err)
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.Addresses = append(i.Addresses, p)
			}
		}
		bound := false
		for _, family := range []Family{IPv4, IPv6} {
			row, err := interfaceRow(i.Index, family)
			if errors.Is(err, windows.ERROR_NOT_FOUND) || errors.Is(err, windows.ERROR_FILE_NOT_FOUND) {
				continue // the interface does not have the family
			}
			if err != nil {
				return nil, fmt.Errorf("read interface %q: %w", n.Name, err)
			}
			i.Forwarding[family], bound = row.ForwardingEnabled != 0, true
		}
		if bound { // else it is gone, or not of the IP stack
			list = append(list, i)
		}
	}
	return list, nil
}

// SetForwarding implements Stack by SetIpInterfaceEntry.
func (System) SetForwarding(index uint32, family Family, on bool) error {
	row, err := interfaceRow(index, family)
	if err != nil {
		return err
	}
	row.ForwardingEnabled = 0
	if on {
		row.ForwardingEnabled = 1
	}
	if family == IPv4 {
		row.SitePrefixLength = 0 // SetIpInterfaceEntry rejects another value, which GetIpInterfaceEntry may return
	}
	return call(setInterface, unsafe.Pointer(row))
}

func interfaceRow(index uint32, family Family) (*windows.MibIpInterfaceRow, error) {
	row := &windows.MibIpInterfaceRow{InterfaceIndex: index, Family: windows.AF_INET}
	if family == IPv6 {
		row.Family = windows.AF_INET6
	}
	return row, call(getInterface, unsafe.Pointer(row))
}

// rowOf returns the row of a route as CreateIpForwardEntry2 and DeleteIpForwardEntry2 take it.
func rowOf(r Route) (*windows.MibIpForwardRow2, error) {
	if err := initialize.Find(); err != nil {
		return nil, err
	}
	row := new(windows.MibIpForwardRow2)
	_, _, _ = initialize.Call(uintptr(unsafe.Pointer(row))) // has no result
	row.InterfaceIndex, row.Metric = r.Interface, r.Metric
	row.Protocol = NetMgmt
	row.DestinationPrefix.PrefixLength = uint8(r.Destination.Bits())
	put(&row.DestinationPrefix.Prefix, r.Destination.Addr())
	put(&row.NextHop, r.NextHop)
	return row, nil
}

// call calls a procedure that takes one row and returns an error code.
func call(p *windows.LazyProc, row unsafe.Pointer) error {
	if err := p.Find(); err != nil {
		return err
	}
	if code, _, _ := p.Call(uintptr(row)); code != 0 {
		return fmt.Errorf("%s: %w", p.Name, windows.Errno(code))
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
