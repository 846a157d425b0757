// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/linux/netfilter"
)

// Table is the name of the nftables table, of family inet.
const Table = "isthmus"

// masqueradeMark is the user data of our rules: the version of their meaning.
var masqueradeMark = []byte("isthmus masquerade 1")

// chunk is the maximum number of elements in one message; an attribute holds 64 KiB.
const chunk = 500

// set is a named set of address ranges of one IP version.
type set struct {
	name     string
	v6       bool
	elements []nftables.SetElement
}

// sets returns the sets of the table: sources to masquerade, and destinations to which they
// keep their address.
func sets(n *fabric.NAT) []set {
	var all []set
	for _, v6 := range []bool{false, true} {
		suffix := "4"
		if v6 {
			suffix = "6"
		}
		all = append(all, set{"sources" + suffix, v6, intervals(n.Sources, v6)}, set{"keep" + suffix, v6, intervals(n.Keep, v6)})
	}
	return all
}

// intervals converts disjoint sorted prefixes into the elements of an interval set: the first
// address of each range and the one after its last. It joins adjacent ranges. The last range
// may be open.
func intervals(all []netip.Prefix, v6 bool) []nftables.SetElement {
	var elements []nftables.SetElement
	var end netip.Addr
	for _, p := range all {
		if p.Addr().Is6() != v6 {
			continue
		}
		if end.IsValid() && end == p.Addr() {
			elements = elements[:len(elements)-1]
		} else {
			elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		}
		if end = netipx.PrefixLastIP(p).Next(); end.IsValid() {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

// nat reconciles the table with the plan in one transaction. Connections keep their addresses.
// It writes nothing if the table is correct.
func (c *changes) nat(want *fabric.NAT) {
	conn, err := nftables.New()
	if err != nil {
		c.fail(fmt.Errorf("open nftables: %w", err))
		return
	}
	table, same, err := natInForce(conn, want)
	if err != nil {
		c.fail(err)
		return
	}
	if same {
		return
	}
	if table != nil {
		conn.DelTable(table)
	}
	if want != nil {
		if err := addTable(conn, want); err != nil {
			c.fail(fmt.Errorf("describe nftables table %s: %w", Table, err))
			return
		}
	}
	err = conn.Flush()
	if err != nil && want == nil && errors.Is(err, unix.ENOENT) {
		err = nil
	}
	c.do("write nftables table inet "+Table, err)
}

// natInForce reads the table and reports whether it matches. If the kernel has no nftables,
// there is none.
func natInForce(conn *nftables.Conn, want *fabric.NAT) (*nftables.Table, bool, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		if want == nil && netfilter.Absent(err) {
			return nil, true, nil
		}
		return nil, false, fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == Table })
	if i < 0 {
		return nil, want == nil, nil
	}
	table := tables[i]
	if want == nil {
		return table, false, nil
	}
	rules, err := conn.GetRules(table, &nftables.Chain{Name: chainPostrouting, Table: table})
	if err != nil || len(rules) != 2 || slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return !bytes.Equal(r.UserData, masqueradeMark) }) {
		return table, false, nil
	}
	for _, s := range sets(want) {
		have, err := conn.GetSetElements(&nftables.Set{Table: table, Name: s.name})
		if err != nil || !sameElements(have, s.elements) {
			return table, false, nil
		}
	}
	return table, true, nil
}

func sameElements(have, want []nftables.SetElement) bool {
	key := func(e nftables.SetElement) string { return fmt.Sprint(e.Key, e.IntervalEnd) }
	keys := func(all []nftables.SetElement) []string {
		var out []string
		for _, e := range all {
			out = append(out, key(e))
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(keys(have), keys(want))
}

const chainPostrouting = "postrouting"

// addTable creates the table: for each IP version, packets from sources to other destinations
// than keep are masqueraded. kube-proxy has its own tables. Each connection gets SNAT only
// once, from the first table that applies it.
func addTable(conn *nftables.Conn, n *fabric.NAT) error {
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: Table})
	chain := conn.AddChain(&nftables.Chain{Name: chainPostrouting, Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	made := make(map[string]*nftables.Set)
	for _, s := range sets(n) {
		ns := &nftables.Set{Table: table, Name: s.name, Interval: true, KeyType: nftables.TypeIPAddr}
		if s.v6 {
			ns.KeyType = nftables.TypeIP6Addr
		}
		if err := conn.AddSet(ns, nil); err != nil {
			return err
		}
		for part := range slices.Chunk(s.elements, chunk) {
			if err := conn.SetAddElements(ns, part); err != nil {
				return err
			}
		}
		made[s.name] = ns
	}
	for _, f := range []struct {
		proto, size   byte
		source, dest  uint32
		sources, kept *nftables.Set
	}{
		{unix.NFPROTO_IPV4, 4, 12, 16, made["sources4"], made["keep4"]},
		{unix.NFPROTO_IPV6, 16, 8, 24, made["sources6"], made["keep6"]},
	} {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, UserData: masqueradeMark, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: uint32(f.size)},
			&expr.Lookup{SourceRegister: 1, SetName: f.sources.Name, SetID: f.sources.ID},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.dest, Len: uint32(f.size)},
			&expr.Lookup{SourceRegister: 1, SetName: f.kept.Name, SetID: f.kept.ID, Invert: true},
			&expr.Masq{FullyRandom: true},
		}})
	}
	return nil
}
