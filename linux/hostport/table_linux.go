// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/netfilter"
)

// tableName is the nftables table of host ports, of family inet.
const tableName = "isthmus-hostports"

// afterServices is the priority of the chains that redirect: after those of kube-proxy. A connection gets DNAT once, so a
// pod takes none of a NodePort, or of another address of a Service that is one of the node. At one priority, the kernel
// would begin with the table that was written last.
var afterServices = nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest + 1)

// podInterfaces is the prefix of the names of pods' host interfaces.
const podInterfaces = "ist"

// FromNode selects which of the node's own connections to host ports go to pods.
type FromNode string

// The values of FromNode: connections to every address of the node, to loopback addresses, and
// none.
const (
	FromNodeAll      FromNode = "all"
	FromNodeLoopback FromNode = "loopback"
	FromNodeNone     FromNode = "none"
)

// Validate returns an error unless the value is one of those.
func (f FromNode) Validate() error {
	switch f {
	case FromNodeAll, FromNodeLoopback, FromNodeNone:
		return nil
	}
	return fmt.Errorf("connections of the node to host ports %q: use all, loopback or none", string(f))
}

// forward redirects a port of the node to a pod.
type forward struct {
	model.HostPort
	To netip.Addr
}

// takesLoopback reports whether connections from the node's loopback addresses go to the pod.
func (f forward) takesLoopback(from FromNode) bool {
	return from != FromNodeNone && f.To.Is4() && (f.All() || f.Address.IsLoopback())
}

// content is the intended content of the table of host ports.
type content struct {
	Forwards []forward
	// Exempt are sockets of the node: its own connections to them stay with them.
	Exempt   []model.HostPort
	FromNode FromNode
}

// setTable makes the table redirect exactly these ports to pods, in one transaction, and
// reports whether it had to write. Open connections keep their DNAT. Pods see the real source.
// Only packets from a pod to itself and packets from loopback addresses get the node's address.
func setTable(want content) (changed bool, err error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	table, err := findTable(conn)
	if err != nil {
		if len(want.Forwards) == 0 && netfilter.Absent(err) {
			return false, nil // without nftables in the kernel there is no table
		}
		return false, err
	}
	chains := want.chains()
	if table == nil && chains == nil || table != nil && chains != nil && inForce(conn, table, chains) {
		return false, nil
	}
	if table != nil {
		conn.DelTable(table)
	}
	if chains != nil {
		addChains(conn, chains)
	}
	if err := conn.Flush(); err != nil && !(chains == nil && errors.Is(err, unix.ENOENT)) {
		return false, fmt.Errorf("write nftables table inet %s: %w", tableName, err)
	}
	return true, nil
}

// HasTable reports whether the table of host ports exists.
func HasTable() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	table, err := findTable(conn)
	return table != nil, err
}

// findTable finds the table; nil if there is none.
func findTable(conn *nftables.Conn) (*nftables.Table, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	if i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName }); i >= 0 {
		return tables[i], nil
	}
	return nil, nil
}

// portChain is a chain of the table; kind is empty if other chains jump to it.
type portChain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    []portRule
}

// portRule stores a description of the rule as user data, which identifies the rule later.
type portRule struct {
	does  string
	exprs []expr.Any
}

// rule joins the expressions of a rule.
func rule(does string, parts ...[]expr.Any) portRule {
	return portRule{"isthmus " + does, slices.Concat(parts...)}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

// chains returns the table's chains, each after those that it jumps to; nil if there is nothing
// to redirect.
func (h content) chains() []portChain {
	if len(h.Forwards) == 0 {
		return nil
	}
	forwards, own, post := portChain{name: "forwards"}, portChain{name: "own"}, portChain{name: "postrouting", kind: nftables.ChainTypeNAT,
		hook: nftables.ChainHookPostrouting, priority: nftables.ChainPriorityNATSource}
	loopback4, loopback6 := netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")
	masquerade := []expr.Any{&expr.Masq{}}
	if h.FromNode != FromNodeNone {
		post.rules = append(post.rules, rule("masquerade loopback addresses", translated(), source(loopback4), masquerade))
	}
	for _, s := range sorted(h.Exempt) {
		for _, v6 := range []bool{false, true} {
			if s.Is(v6) {
				own.rules = append(own.rules, rule(fmt.Sprintf("exempt %s (IPv6: %t)", s, v6), matchPort(s, v6), verdict(expr.VerdictReturn, "")))
			}
		}
	}
	for _, f := range sorted(h.Forwards) {
		lead := rule(f.String(), matchPort(f.HostPort, f.To.Is6()), f.translate())
		forwards.rules, own.rules = append(forwards.rules, lead), append(own.rules, lead)
		self := netip.PrefixFrom(f.To, f.To.BitLen())
		post.rules = append(post.rules, rule("masquerade a pod to itself: "+f.String(), translated(), source(self), destination(self), masquerade))
	}
	all := []portChain{
		// Interfaces of pods accept loopback addresses for the sake of redirections from them,
		// so packets of pods to such addresses must be dropped here.
		{name: "raw", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityRaw,
			rules: []portRule{rule("drop packets of pods to loopback addresses", fromPods(), destination(loopback4), verdict(expr.VerdictDrop, ""))}},
		forwards,
		{name: "prerouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPrerouting, priority: afterServices,
			rules: []portRule{rule("forward host ports to pods", localDestination(), verdict(expr.VerdictJump, forwards.name))}},
		post,
	}
	if h.FromNode == FromNodeNone {
		return all
	}
	output := portChain{name: "output", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookOutput, priority: afterServices}
	jump := verdict(expr.VerdictJump, own.name)
	if h.FromNode == FromNodeLoopback {
		output.rules = []portRule{rule("forward the node's connections to loopback addresses", destination(loopback4), jump)}
	} else {
		output.rules = []portRule{
			// No interface accepts ::1, so such a connection would hang.
			rule("do not forward connections from ::1", source(loopback6), verdict(expr.VerdictReturn, "")),
			rule("forward the node's connections", localDestination(), jump),
		}
	}
	return append(all, own, output)
}

// sorted sorts ports in a deterministic order.
func sorted[T fmt.Stringer](list []T) []T {
	return slices.SortedFunc(slices.Values(list), func(a, b T) int { return strings.Compare(a.String(), b.String()) })
}

// is reports whether a chain of the system has the name and the priority of this one.
func (p portChain) is(c *nftables.Chain) bool {
	return p.name == c.Name && (p.priority == nil) == (c.Priority == nil) && (p.priority == nil || *p.priority == *c.Priority)
}

// inForce reports whether the table has exactly these chains with these rules.
func inForce(conn *nftables.Conn, table *nftables.Table, want []portChain) bool {
	for _, c := range want {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: c.name, Table: table})
		if err != nil || len(rules) != len(c.rules) {
			return false
		}
		for i, r := range rules {
			if string(r.UserData) != c.rules[i].does {
				return false
			}
		}
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	n := 0
	for _, c := range chains {
		if c.Table.Name != tableName {
			continue
		}
		if !slices.ContainsFunc(want, func(w portChain) bool { return w.is(c) }) {
			return false
		}
		n++
	}
	return err == nil && n == len(want)
}

func addChains(conn *nftables.Conn, chains []portChain) {
	t := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	for _, c := range chains {
		chain := conn.AddChain(&nftables.Chain{Name: c.name, Table: t, Type: c.kind, Hooknum: c.hook, Priority: c.priority})
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: r.exprs, UserData: []byte(r.does)})
		}
	}
}

// String returns a text that identifies the redirection.
func (f forward) String() string { return fmt.Sprintf("%s to %s port %d", f.HostPort, f.To, f.Port) }

// matchPort returns the expressions for packets of one IP version to a port of the node. An
// earlier rule has matched localDestination.
func matchPort(h model.HostPort, v6 bool) []expr.Any {
	all := family(v6)
	if !h.All() {
		all = append(all, destination(netip.PrefixFrom(h.Address, h.Address.BitLen()))[2:]...)
	}
	return append(all,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(h.Protocol)}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(h.Number)})
}

func (f forward) translate() []expr.Any {
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

// Offsets of the addresses in IPv4 and IPv6 headers, in bytes.
func source(p netip.Prefix) []expr.Any      { return address(p, 12, 8) }
func destination(p netip.Prefix) []expr.Any { return address(p, 16, 24) }

func address(p netip.Prefix, at4, at6 uint32) []expr.Any {
	size, at := uint32(4), at4
	if p.Addr().Is6() {
		size, at = 16, at6
	}
	mask := netipx.PrefixIPNet(p).Mask
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

// translated matches connections after DNAT (IPS_DST_NAT of
// linux/netfilter/nf_conntrack_common.h).
func translated() []expr.Any {
	const dstNAT = 1 << 5
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(dstNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}
}
