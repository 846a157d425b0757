// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
)

// PortTable is the nftables table of host ports, of family inet.
const PortTable = "isthmus-hostports"

// podInterfaces is what the host's ends of pods' pairs begin with.
const podInterfaces = "ist"

// Forward leads a port of the node to a pod.
type Forward struct {
	model.HostPort
	To netip.Addr
}

// name tells forwards apart; rules carry it as user data.
func (f Forward) name() []byte {
	return fmt.Appendf(nil, "isthmus %s to %s port %d", f.HostPort, f.To, f.Port)
}

// SetHostPorts makes the table lead exactly these ports to pods, in one
// transaction, and reports whether it had to be written. Connections that are
// open keep their translation. The pods see who really sends; only what a pod
// sends to itself, and what comes from loopback addresses, has the node's.
func SetHostPorts(want []Forward) (changed bool, err error) {
	want = slices.SortedFunc(slices.Values(want), func(a, b Forward) int { return bytes.Compare(a.name(), b.name()) })
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		if len(want) == 0 {
			return false, nil // without nftables in the kernel there is no table
		}
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == PortTable })
	if i < 0 && len(want) == 0 || i >= 0 && len(want) > 0 && portsInForce(conn, tables[i], want) {
		return false, nil
	}
	if i >= 0 {
		conn.DelTable(tables[i])
	}
	if len(want) > 0 {
		addPorts(conn, want)
	}
	if err := conn.Flush(); err != nil && !(len(want) == 0 && errors.Is(err, unix.ENOENT)) {
		return false, fmt.Errorf("write nftables table inet %s: %w", PortTable, err)
	}
	return true, nil
}

// portsInForce reports whether the table has these forwards and all its chains.
func portsInForce(conn *nftables.Conn, table *nftables.Table, want []Forward) bool {
	for name, count := range map[string]int{"raw": 1, "prerouting": 1, "output": 1, "forwards": len(want), "postrouting": 1 + len(want)} {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: name, Table: table})
		if err != nil || len(rules) != count {
			return false
		}
		if name != "forwards" {
			continue
		}
		for i, r := range rules {
			if !bytes.Equal(r.UserData, want[i].name()) {
				return false
			}
		}
	}
	return true
}

func addPorts(conn *nftables.Conn, want []Forward) {
	t := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: PortTable})
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{Name: name, Table: t, Type: kind, Hooknum: hook, Priority: priority})
	}
	rule := func(c *nftables.Chain, data []byte, parts ...[]expr.Any) {
		conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: slices.Concat(parts...), UserData: data})
	}
	forwards := conn.AddChain(&nftables.Chain{Name: "forwards", Table: t})
	for _, f := range want {
		rule(forwards, f.name(), f.match(), f.translate())
	}
	jump := [][]expr.Any{localDestination(), {&expr.Verdict{Kind: expr.VerdictJump, Chain: forwards.Name}}}
	// Pods' interfaces take loopback addresses for the sake of forwards from
	// them; nothing that a pod sends there may get in.
	rule(chain("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw), nil,
		fromPods(), destination(netip.MustParsePrefix("127.0.0.0/8")), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})
	rule(chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest), nil, jump...)
	rule(chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest), nil, jump...)
	post := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	masquerade := []expr.Any{&expr.Masq{}}
	rule(post, nil, translated(), source(netip.MustParsePrefix("127.0.0.0/8")), masquerade)
	for _, f := range want {
		self := netip.PrefixFrom(f.To, f.To.BitLen())
		rule(post, nil, translated(), source(self), destination(self), masquerade)
	}
}

// match are the expressions for packets to the host port; localDestination has
// been asked before.
func (f Forward) match() []expr.Any {
	all := family(f.To.Is6())
	if !f.All() {
		all = append(all, destination(netip.PrefixFrom(f.Address, f.Address.BitLen()))[2:]...)
	}
	return append(all,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(f.Protocol)}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(f.Number)})
}

func (f Forward) translate() []expr.Any {
	to := uint32(unix.NFPROTO_IPV4)
	if f.To.Is6() {
		to = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: f.To.AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(f.Port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: to, RegAddrMin: 1, RegProtoMin: 2},
	}
}

func family(v6 bool) []expr.Any {
	proto := byte(unix.NFPROTO_IPV4)
	if v6 {
		proto = unix.NFPROTO_IPV6
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}}}
}

// Offsets of the addresses in headers of IPv4 and IPv6.
func source(p netip.Prefix) []expr.Any      { return address(p, 12, 8) }
func destination(p netip.Prefix) []expr.Any { return address(p, 16, 24) }

func address(p netip.Prefix, at4, at6 uint32) []expr.Any {
	size, at := uint32(4), at4
	if p.Addr().Is6() {
		size, at = 16, at6
	}
	mask := ipNet(p).Mask
	return append(family(p.Addr().Is6()),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()})
}

func localDestination() []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)}}
}

func fromPods() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(podInterfaces)}}
}

// translated are connections of which the destination was exchanged (IPS_DST_NAT
// of linux/netfilter/nf_conntrack_common.h).
func translated() []expr.Any {
	const dstNAT = 1 << 5
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(dstNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}
}
