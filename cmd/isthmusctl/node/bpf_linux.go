// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/isthmus-net/isthmus/linux/clock"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// pinsOf returns the directory of the maps of this node, below the one of the agent.
func pinsOf(bpffs string) (string, error) {
	pins := filepath.Join(bpffs, loader.LayoutVersion)
	_, err := os.Stat(pins)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("no data path of Isthmus on this node: %s does not exist: start the agent, or name its directory with --bpffs", pins)
	case err != nil:
		return "", fmt.Errorf("read the maps of this node: %w: run isthmusctl as root", err)
	}
	return pins, nil
}

// readPinnedMaps reads the maps that the agent pinned below a directory.
func readPinnedMaps(bpffs string, flows bool) (*pinnedMaps, error) {
	pins, err := pinsOf(bpffs)
	if err != nil {
		return nil, err
	}
	m := &pinnedMaps{}
	if flows { // before the flows, so that no flow is of the future by more than the time of the walk
		if m.now, m.hz, err = readClock(); err != nil {
			return nil, err
		}
	}
	if m.Maps, err = loader.ReadPinned(pins, flows); err != nil {
		return nil, fmt.Errorf("%w: run isthmusctl as root, with the version of the agent", err)
	}
	return m, nil
}

// readClock reads the clock that the programs store in flows.
func readClock() (now uint32, hz int, err error) {
	if hz, err = clock.MeasureHZ(); err != nil {
		return 0, 0, err
	}
	c, err := clock.Open()
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	now, err = c.Jiffies()
	return now, hz, err
}
