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
	// Add adds a route until the host restarts, with the protocol NetMgmt. An existing route is not an error.
	Add(Route) error
}

// Keeper saves and restores routes. It is not safe for concurrent use.
type Keeper struct {
	table Table
	// file holds the saved routes, as JSON, until all are restored.
	file         string
	destinations []netip.Prefix
}

// Keep returns a Keeper of the routes to exactly these destinations.
func Keep(t Table, file string, destinations []netip.Prefix) *Keeper {
	return &Keeper{table: t, file: file, destinations: destinations}
}

// Remember saves the current routes before they may be lost. A route that is saved already stays: it is
// from before an unfinished attempt.
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
		return fmt.Errorf("save the host's routes: %w", err)
	}
	if err := os.WriteFile(k.file+".new", text, 0o600); err != nil {
		return fmt.Errorf("save the host's routes: %w", err)
	}
	if err := os.Rename(k.file+".new", k.file); err != nil {
		return fmt.Errorf("save the host's routes: %w", err)
	}
	return nil
}

// Restore restores the saved routes that are missing, and returns those that it added. After an error call
// it again: the host may not have its address yet.
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
		return nil, fmt.Errorf("read the host's routes saved in %s: %w: add them by hand and remove the file", k.file, err)
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
		return added, fmt.Errorf("restore the host's routes (to give up, remove %s): %w", k.file, err)
	}
	if err := os.Remove(k.file); err != nil {
		return added, fmt.Errorf("remove the saved host's routes: %w", err)
	}
	return added, nil
}
