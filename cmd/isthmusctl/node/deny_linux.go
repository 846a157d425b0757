// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/denymap"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

// nodeDenials are the deny lists in the maps of this node.
type nodeDenials struct {
	found      *denymap.Entries
	prefilters [2]denymap.Prefilter
}

// pinnedDenials reads the maps that the agent pinned below a directory.
func pinnedDenials(bpffs string) (denials, error) {
	pins := filepath.Join(bpffs, loader.LayoutVersion)
	if _, err := os.Stat(pins); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no data path of Isthmus on this node: %s does not exist: start the agent, name its directory "+
			"with --bpffs, or read manifests with --manifests", pins)
	} else if err != nil {
		return nil, fmt.Errorf("read deny lists of this node: %w: run isthmusctl as root, or read manifests with --manifests", err)
	}
	found, err := xdp.ReadPinned(pins)
	if err != nil {
		return nil, fmt.Errorf("%w: run isthmusctl as root, or read manifests with --manifests", err)
	}
	if found == nil { // no list is in force
		found = denymap.NewEntries()
	}
	return &nodeDenials{found, found.Prefilters()}, nil
}

func (n *nodeDenials) entries() []deniedEntry {
	var all []deniedEntry
	prefixes := slices.Collect(maps.Keys(n.found.Prefixes))
	for a := range n.found.Singles {
		prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(prefixes, model.ComparePrefixes)
	for _, p := range prefixes {
		d := deniedEntry{Address: model.EntryText(p), Verdict: "denied"}
		if action, ok := n.found.Singles[p.Addr()]; ok && p.IsSingleIP() && action == denymap.Exempt {
			d.Verdict = "exempt"
		}
		all = append(all, d)
	}
	return all
}

func (n *nodeDenials) check(a netip.Addr) deniedEntry {
	d := deniedEntry{Address: a.String(), Verdict: "allowed"}
	if n.found.Lookup(n.prefilters, a) {
		d.Verdict = "denied"
	} else if action, ok := n.found.Singles[a]; ok && action == denymap.Exempt {
		d.Verdict = "exempt"
	}
	for p := range n.found.Prefixes {
		if p.Contains(a) {
			d.By = append(d.By, p.String())
		}
	}
	return d
}
