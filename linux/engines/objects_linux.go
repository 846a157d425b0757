// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/nftables"

	"github.com/isthmus-net/isthmus/linux/netfilter"
)

// Detect returns the engines in the network namespace of the caller, and those with pinned programs under root, the
// directory of the host's files.
func Detect(root string) ([]Engine, error) {
	o, err := objects()
	if err == nil {
		o.Pins, err = pins(root)
	}
	if err != nil {
		return nil, fmt.Errorf("look for other policy engines: %w", err)
	}
	return Find(o), nil
}

// pins returns the directories of signatures that are not empty.
func pins(root string) (all []string, err error) {
	for _, s := range signatures {
		if s.pins == "" {
			continue
		}
		d, err := os.Open(filepath.Join(root, s.pins))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open a directory of pins: %w", err)
		}
		_, err = d.Readdirnames(1)
		d.Close()
		switch {
		case err == nil:
			all = append(all, s.pins)
		case !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("read a directory of pins: %w", err)
		}
	}
	return all, nil
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
