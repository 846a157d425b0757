// SPDX-License-Identifier: Apache-2.0

package hostroute

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/isthmus-net/isthmus/windows/statefile"
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
	// damaged says that the file was not readable once: routes that it had may be missing.
	damaged error
}

// Keep returns a Keeper of the routes to exactly these destinations.
func Keep(t Table, file string, destinations []netip.Prefix) *Keeper {
	return &Keeper{table: t, file: file, destinations: destinations}
}

// Remember saves the current routes before they may be lost. A route that is saved already stays: it is
// from before an unfinished attempt. An error that is statefile.ErrDamaged is about an earlier file.
func (k *Keeper) Remember() error {
	if k == nil {
		return nil
	}
	before, err := k.saved()
	if err != nil || len(before) > 0 {
		return errors.Join(err, k.damaged)
	}
	table, err := k.table.Routes()
	if err != nil {
		return fmt.Errorf("read the host's routes: %w", err)
	}
	if routes := kept(table, k.destinations); len(routes) > 0 {
		err = statefile.Save(k.file, routes)
	}
	if err != nil {
		err = fmt.Errorf("save the host's routes: %w", err)
	}
	return errors.Join(err, k.damaged)
}

// saved reads the file; there are no routes without one, or in a damaged one, which must not keep later routes from being saved.
func (k *Keeper) saved() (routes []Route, err error) {
	err = statefile.Load(k.file, func(text []byte) error { return json.Unmarshal(text, &routes) })
	switch {
	case errors.Is(err, statefile.ErrDamaged):
		k.damaged = fmt.Errorf("the file of the host's routes %w: add those to %v by hand if they are missing", err, k.destinations)
		return nil, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the host's routes saved in %s: %w", k.file, err)
	}
	return routes, nil
}

// Restore restores the saved routes that are missing, and returns those that it added. After an error call
// it again: the host may not have its address yet.
func (k *Keeper) Restore() ([]Route, error) {
	if k == nil {
		return nil, nil
	}
	before, err := k.saved()
	if err != nil || len(before) == 0 {
		return nil, errors.Join(err, k.damaged)
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
	return added, k.damaged
}
