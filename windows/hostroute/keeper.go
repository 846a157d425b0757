// SPDX-License-Identifier: Apache-2.0

package hostroute

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
)

// Table is the host's routing table.
type Table interface {
	// Routes lists the routes of both families.
	Routes() ([]Route, error)
	// Add adds a route until the host restarts. One that is there is no error.
	Add(Route) error
}

// Keeper puts routes back. It is not safe for concurrent use.
type Keeper struct {
	table Table
	// file holds what was there before, as JSON, until all of it is back.
	file         string
	destinations []netip.Prefix
}

// Keep returns a Keeper of the routes to exactly these destinations.
func Keep(t Table, file string, destinations []netip.Prefix) *Keeper {
	return &Keeper{table: t, file: file, destinations: destinations}
}

// Remember notes the routes that are there, before they may be lost. What is
// noted already stays: it is from before an attempt that was not finished.
func (k *Keeper) Remember() error {
	if k == nil {
		return nil
	}
	if _, err := os.Stat(k.file); err == nil {
		return nil
	}
	table, err := k.table.Routes()
	if err != nil {
		return fmt.Errorf("read the host's routes: %w", err)
	}
	routes := kept(table, k.destinations)
	if len(routes) == 0 {
		return nil
	}
	text, err := json.Marshal(routes)
	if err != nil {
		return fmt.Errorf("note the host's routes: %w", err)
	}
	if err := os.WriteFile(k.file+".new", text, 0o600); err != nil {
		return fmt.Errorf("note the host's routes: %w", err)
	}
	if err := os.Rename(k.file+".new", k.file); err != nil {
		return fmt.Errorf("note the host's routes: %w", err)
	}
	return nil
}

// Restore puts back what was noted and is gone, and returns what it added. After an error
// it is to be called again: the host may not have its address yet.
func (k *Keeper) Restore() ([]Route, error) {
	if k == nil {
		return nil, nil
	}
	text, err := os.ReadFile(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var before []Route
	if err == nil {
		err = json.Unmarshal(text, &before)
	}
	if err != nil {
		return nil, fmt.Errorf("read the host's routes as noted in %s: %w: add them by hand and remove the file", k.file, err)
	}
	now, err := k.table.Routes()
	if err != nil {
		return nil, fmt.Errorf("read the host's routes: %w", err)
	}
	gone, err := lost(before, now)
	var added []Route
	for _, r := range gone {
		if e := k.table.Add(r); e != nil {
			err = errors.Join(err, fmt.Errorf("add %s by %s on interface %d: %w", r.Destination, r.NextHop, r.Interface, e))
			continue
		}
		added = append(added, r)
	}
	if err != nil {
		return added, fmt.Errorf("put back the host's routes (where that is in vain, remove %s): %w", k.file, err)
	}
	if err := os.Remove(k.file); err != nil {
		return added, fmt.Errorf("forget the host's routes: %w", err)
	}
	return added, nil
}
