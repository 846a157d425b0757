// SPDX-License-Identifier: Apache-2.0

//go:build linux

package endpoint_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// fill makes the next write of the only record's temporary file fail as on a full disk. It returns
// the record's path.
func fill(t *testing.T, dir string) (path string) {
	t.Helper()
	path = files(t, dir, ".json")[0]
	if err := os.Symlink("/dev/full", path+".tmp"); err != nil {
		t.Fatal(err)
	}
	return path
}

// large is a record that takes more than a page.
func large() endpoint.Record {
	r := record(1)
	for n := range uint16(1000) {
		r.HostPorts = append(r.HostPorts, model.HostPort{Address: netip.MustParseAddr("fd00:1111:2222:3333:4444:5555:6666:7777"), Number: 30000 + n, Protocol: model.TCP, Port: 30000 + n})
	}
	return r
}

func TestPutOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, record(1))
	path := fill(t, dir)
	changed := record(1)
	changed.State = endpoint.Adding
	err := s.Put(changed)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), ": no space left on device: free space or inodes on the disk of "+dir) {
		t.Errorf("got %v", err)
	}
	if left, err := filepath.Glob(path + "*"); err != nil || len(left) != 1 {
		t.Errorf("files %v, %v", left, err)
	}
	if got, _ := load(t, s); !reflect.DeepEqual(got, []endpoint.Record{record(1)}) {
		t.Errorf("the earlier record is %+v", got)
	}
}

// TestReleaseOnFullDisk turns records of all shapes into tombstones without space for another file. Another
// record must stay as it is.
func TestReleaseOnFullDisk(t *testing.T) {
	short := endpoint.Record{State: endpoint.Ready, ContainerID: "c", IfName: "e", NetNS: "/n/1", Namespace: "n", Name: "p", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Created: t0.Truncate(time.Second)}
	adding, limited := record(1), record(1)
	adding.State = endpoint.Adding
	limited.Bandwidth.Egress = model.Limit{Rate: 1e6, Burst: 1e6}
	limited.HostPorts = large().HostPorts[:20]
	limited.DNS.Servers = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	for name, r := range map[string]endpoint.Record{"short": short, "ordinary": record(1), "adding": adding, "with limits": limited} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			put(t, s, r)
			path := fill(t, dir)
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			put(t, s, record(2))
			at := t0.Add(time.Hour + 123456789)
			if err := s.Release(r.Tombstone(at)); err != nil {
				t.Fatal(err)
			}
			after, err := os.Stat(path)
			if err != nil || !os.SameFile(before, after) || before.Size() != after.Size() {
				t.Errorf("the file was %v and is %v, %v", before, after, err)
			}
			want := r
			want.Version, want.State, want.ReleasedAt = endpoint.SchemaVersion, endpoint.Released, at
			want.NetNS, want.HostPorts, want.Bandwidth, want.DNS = "", nil, model.Bandwidth{}, model.DNS{}
			got, problems := load(t, open(t, dir))
			if len(got) != 2 || len(problems) > 0 || !reflect.DeepEqual(pick(got, r.ID()), want) || !reflect.DeepEqual(pick(got, record(2).ID()), record(2)) {
				t.Errorf("got %+v, %v, want %+v beside record 2", got, problems, want)
			}
			put(t, s, r) // the disk has space again
			if got, _ := load(t, s); pick(got, r.ID()).State != r.State {
				t.Errorf("got %+v, want the record of the endpoint that is attached again", got)
			}
		})
	}
}

func pick(all []endpoint.Record, id model.EndpointID) endpoint.Record {
	for _, r := range all {
		if r.ID() == id {
			return r
		}
	}
	return endpoint.Record{}
}

// TestReleaseWithoutTombstone releases records that cannot be overwritten in one
// step, or not at all.
func TestReleaseWithoutTombstone(t *testing.T) {
	for name, c := range map[string]struct {
		record endpoint.Record
		change func(t *testing.T, path string)
		gone   bool
	}{
		"larger than a page": {large(), func(*testing.T, string) {}, true},
		"file is shorter": {record(1), func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, true},
		"file is gone": {record(1), func(t *testing.T, path string) { os.Remove(path) }, true},
		"cannot be removed": {record(1), func(t *testing.T, path string) {
			os.Remove(path)
			if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			put(t, s, c.record)
			path := fill(t, dir)
			c.change(t, path)
			err := s.Release(c.record.Tombstone(t0))
			if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, endpoint.ErrNoTombstone) != c.gone {
				t.Errorf("got %v, want no space, without a record: %t", err, c.gone)
			}
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) != c.gone {
				t.Errorf("%s: %v, want it gone: %t", path, err, c.gone)
			}
		})
	}
}

// TestLargeRecord checks that a record that the store could not read back is not written.
func TestLargeRecord(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, large())
	if got, problems := load(t, s); len(got) != 1 || len(problems) > 0 || len(got[0].HostPorts) != 1000 {
		t.Errorf("%d records, %v", len(got), problems)
	}
	r := large()
	for range 2 {
		r.HostPorts = append(r.HostPorts, r.HostPorts...)
	}
	if err := s.Put(r); err == nil || !strings.Contains(err.Error(), "bytes exceed the limit of") {
		t.Errorf("got %v", err)
	}
}
