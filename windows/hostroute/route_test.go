// SPDX-License-Identifier: Apache-2.0

package hostroute

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func route(to, hop string, index, metric uint32) Route {
	return Route{Destination: netip.MustParsePrefix(to), NextHop: netip.MustParseAddr(hop), Interface: index, Metric: metric}
}

const metadata = "169.254.169.254/32"

func TestLost(t *testing.T) {
	host := []Route{
		route("0.0.0.0/0", "10.0.0.1", 9, 25), route("10.0.0.0/16", "0.0.0.0", 9, 256), route("10.0.0.0/8", "0.0.0.0", 7, 1),
		route("::/0", "fe80::1", 9, 16), route("fe80::/64", "::", 9, 256),
	}
	for name, c := range map[string]struct {
		before []Route
		now    []Route
		want   []Route
		fails  string
	}{
		"by a next hop":          {[]Route{route(metadata, "10.0.0.1", 4, 30)}, host, []Route{route(metadata, "10.0.0.1", 9, 30)}, ""},
		"on the link":            {[]Route{route(metadata, "0.0.0.0", 4, 30)}, host, []Route{route(metadata, "0.0.0.0", 9, 30)}, ""},
		"IPv6":                   {[]Route{route("fd00:ec2::254/128", "fe80::1", 4, 30)}, host, []Route{route("fd00:ec2::254/128", "fe80::1", 9, 30)}, ""},
		"still there":            {[]Route{route(metadata, "10.0.0.1", 4, 30)}, append(host, route(metadata, "10.0.0.1", 9, 5)), nil, ""},
		"no address yet":         {[]Route{route(metadata, "10.0.0.1", 4, 30)}, nil, nil, "10.0.0.1, the next hop to " + metadata},
		"one of two":             {[]Route{route(metadata, "10.9.0.1", 4, 30), route("1.2.3.4/32", "192.0.2.1", 4, 30)}, host, []Route{route(metadata, "10.9.0.1", 7, 30)}, "192.0.2.1"},
		"only a default by IPv6": {[]Route{route(metadata, "0.0.0.0", 4, 30)}, host[3:], nil, "no interface"},
	} {
		got, err := lost(c.before, c.now)
		if !reflect.DeepEqual(got, c.want) || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, %v; want %v, %q", name, got, err, c.want, c.fails)
		}
	}
}

// table is the routing table of a host that a test controls.
type table struct {
	routes  []Route
	refuses error
}

func (t *table) Routes() ([]Route, error) { return slices.Clone(t.routes), nil }

func (t *table) Add(r Route) error {
	if t.refuses == nil {
		t.routes = append(t.routes, r)
	}
	return t.refuses
}

// TestKeeper simulates an outage of the host with a crash during it.
func TestKeeper(t *testing.T) {
	file := filepath.Join(t.TempDir(), "routes.json")
	link, gateway := route("10.0.0.0/16", "0.0.0.0", 4, 256), route("0.0.0.0/0", "10.0.0.1", 4, 25)
	host := &table{routes: []Route{gateway, link, route(metadata, "10.0.0.1", 4, 30), route("10.2.0.0/16", "10.0.0.9", 4, 1)}}
	keeper := func() *Keeper { return Keep(host, file, []netip.Prefix{netip.MustParsePrefix(metadata)}) }
	if err := keeper().Remember(); err != nil {
		t.Fatal(err)
	}
	host.routes = nil
	if err := keeper().Remember(); err != nil { // the attempt after a crash
		t.Fatal(err)
	}
	if _, err := keeper().Restore(); err == nil {
		t.Error("routes are back on a host without addresses")
	}
	link.Interface, gateway.Interface = 9, 9
	host.routes = []Route{gateway, link}
	host.refuses = errors.New("busy")
	if _, err := keeper().Restore(); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("a refused route: %v", err)
	}
	host.refuses = nil
	added, err := keeper().Restore()
	if want := []Route{route(metadata, "10.0.0.1", 9, 30)}; err != nil || !reflect.DeepEqual(added, want) {
		t.Errorf("put back %v, %v; want %v", added, err, want)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the note is still there: %v", err)
	}
	if again, err := keeper().Restore(); err != nil || again != nil {
		t.Errorf("put back again: %v, %v", again, err)
	}
}

// TestDamagedRoutes begins with a file that a power cut has damaged. Routes are saved and restored as without it, and it stays
// reported, because the routes that it had may be missing.
func TestDamagedRoutes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "routes.json")
	link, gateway := route("10.0.0.0/16", "0.0.0.0", 4, 256), route("0.0.0.0/0", "10.0.0.1", 4, 25)
	host := &table{routes: []Route{gateway, link, route(metadata, "10.0.0.1", 4, 30)}}
	for saves, read := range map[bool]func(*Keeper) error{true: (*Keeper).Remember, false: func(k *Keeper) error { _, err := k.Restore(); return err }} {
		if err := os.WriteFile(file, []byte("\x00\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
		k := Keep(host, file, []netip.Prefix{netip.MustParsePrefix(metadata)})
		want := file + " is damaged, and is now " + file + ".broken"
		if err := read(k); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := os.Stat(file); os.IsNotExist(err) == saves {
			t.Errorf("saved %t, %v", saves, err)
		}
		if err := k.Remember(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("again: %v, want %q", err, want)
		}
		host.routes = []Route{gateway, link}
		added, err := k.Restore()
		if err == nil || !strings.Contains(err.Error(), want) || len(added) != 1 || added[0].Destination.String() != metadata {
			t.Errorf("restored %v, %v, want %q", added, err, want)
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("the note is still there: %v", err)
		}
	}
}

func TestNothingToKeep(t *testing.T) {
	var none *Keeper
	if err := none.Remember(); err != nil {
		t.Error(err)
	}
	if added, err := none.Restore(); err != nil || added != nil {
		t.Error(added, err)
	}
	file := filepath.Join(t.TempDir(), "routes.json")
	if err := Keep(&table{}, file, []netip.Prefix{netip.MustParsePrefix(metadata)}).Remember(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a note of no routes: %v", err)
	}
}
