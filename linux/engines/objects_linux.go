// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"net"
	"slices"

	"github.com/google/nftables"

	"github.com/isthmus-net/isthmus/linux/netfilter"
)

// Detect returns the engines in the network namespace of the caller.
func Detect() ([]Engine, error) {
	o, err := objects()
	if err != nil {
		return nil, fmt.Errorf("look for other policy engines: %w", err)
	}
	return Find(o), nil
}

func objects() (o Objects, err error) {
	c, err := nftables.New()
	if err != nil {
		return o, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := c.ListTables()
	if err != nil && !netfilter.Absent(err) {
		return o, fmt.Errorf("list tables of nftables: %w", err)
	}
	for _, t := range tables {
		o.Tables = append(o.Tables, t.Name)
	}
	chains, err := c.ListChains()
	if err != nil && !netfilter.Absent(err) {
		return o, fmt.Errorf("list chains of nftables: %w", err)
	}
	for _, ch := range chains {
		o.Chains = append(o.Chains, ch.Name)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return o, fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range interfaces {
		o.Interfaces = append(o.Interfaces, i.Name)
	}
	for _, names := range [][]string{o.Tables, o.Chains, o.Interfaces} {
		slices.Sort(names)
	}
	return o, nil
}
