// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

var t0 = time.Unix(1_700_000_000, 12345).UTC()

func record(n int) endpoint.Record {
	return endpoint.Record{Version: endpoint.SchemaVersion, State: endpoint.Ready, ContainerID: fmt.Sprintf("c%d", n), IfName: "eth0",
		NetNS: "/run/netns/a", Network: "pods", Namespace: "shop", Name: fmt.Sprintf("web-%d", n), UID: "u",
		IPs:     []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), netip.MustParseAddr("fd00::2")},
		Created: t0.Add(time.Duration(n) * time.Second)}
}

func open(t *testing.T, dir string) *endpoint.Store {
	t.Helper()
	s, err := endpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *endpoint.Store, r endpoint.Record) {
	t.Helper()
	if err := s.Put(r); err != nil {
		t.Fatal(err)
	}
}

// load reads the records, and fails on an error.
func load(t *testing.T, s *endpoint.Store) ([]endpoint.Record, []error) {
	t.Helper()
	records, problems, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	return records, problems
}

// files lists the files in a directory with a suffix.
func files(t *testing.T, dir, suffix string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "endpoints")
	s := open(t, dir)
	var want []endpoint.Record
	for i, state := range []endpoint.State{endpoint.Ready, endpoint.Adding, endpoint.Released} {
		r := record(i + 1)
		r.State = state
		r.Bandwidth.Ingress = model.Limit{Rate: 1e6 * uint64(i), Burst: uint64(i) << 32}
		r.DNS = model.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Searches: []string{"cluster.local"}, Options: []string{"ndots:5"}, Domain: "corp"}
		if state == endpoint.Released {
			r.ReleasedAt = t0.Add(time.Hour)
		}
		want = append(want, r)
	}
	for _, r := range slices.Backward(want) {
		put(t, s, r)
	}
	got, problems := load(t, open(t, dir))
	if !reflect.DeepEqual(got, want) || len(problems) > 0 {
		t.Errorf("got %+v, %v\nwant %+v", got, problems, want)
	}
	for range 2 { // already removed the second time
		if err := s.Remove(want[1].ID()); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := load(t, s); len(got) != 2 {
		t.Errorf("%d records after one was removed", len(got))
	}
	if runtime.GOOS != "windows" {
		for path, want := range map[string]os.FileMode{dir: 0o700, files(t, dir, ".json")[0]: 0o600} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: mode %s, %v, want %s", path, info.Mode().Perm(), err, want)
			}
		}
	}
}

func TestPutRefusesWhatLoadWould(t *testing.T) {
	s := open(t, t.TempDir())
	for name, change := range map[string]func(*endpoint.Record){
		"state":        func(r *endpoint.Record) { r.State = "gone" },
		"containerID":  func(r *endpoint.Record) { r.ContainerID = "" },
		"ifName":       func(r *endpoint.Record) { r.IfName = "" },
		"name":         func(r *endpoint.Record) { r.Name = "" },
		"netns":        func(r *endpoint.Record) { r.NetNS = "" },
		"ips":          func(r *endpoint.Record) { r.IPs = nil },
		"two of one":   func(r *endpoint.Record) { r.IPs = append(r.IPs, netip.MustParseAddr("10.0.0.9")) },
		"no address":   func(r *endpoint.Record) { r.IPs = []netip.Addr{{}} },
		"mapped":       func(r *endpoint.Record) { r.IPs = []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.9")} },
		"created":      func(r *endpoint.Record) { r.Created = time.Time{} },
		"bandwidth":    func(r *endpoint.Record) { r.Bandwidth.Egress.Rate = 1 },
		"dns":          func(r *endpoint.Record) { r.DNS.Searches = []string{"a,b"} },
		"dns server":   func(r *endpoint.Record) { r.DNS.Servers = []netip.Addr{{}} },
		"release time": func(r *endpoint.Record) { r.State = endpoint.Released },
	} {
		r := record(1)
		change(&r)
		if err := s.Put(r); err == nil {
			t.Errorf("%s: a record that cannot be read back was written", name)
		}
	}
	if got, _ := load(t, s); len(got) != 0 {
		t.Errorf("%d records were written", len(got))
	}
}

// TestTruncatedAtEveryByte truncates a record after each of its bytes. The last byte is an optional
// newline.
func TestTruncatedAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir), record(1))
	put(t, open(t, dir), record(2))
	path := ""
	var whole []byte
	for _, f := range files(t, dir, ".json") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), `"c1"`) {
			path, whole = f, b
		}
	}
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		records, problems := load(t, open(t, dir))
		aside := files(t, dir, ".broken*")
		if n == len(whole)-1 {
			if len(records) != 2 || len(problems) != 0 || len(aside) != 0 {
				t.Fatalf("without the last newline: %d records, %v, %v", len(records), problems, aside)
			}
			continue
		}
		if len(records) != 1 || len(problems) != 1 || len(aside) != 1 {
			t.Fatalf("cut after %d bytes: %d records, problems %v, moved aside %v", n, len(records), problems, aside)
		}
		if b, err := os.ReadFile(aside[0]); err != nil || string(b) != string(whole[:n]) {
			t.Fatalf("cut after %d bytes: what was moved aside changed: %v", n, err)
		}
		if !strings.Contains(problems[0].Error(), filepath.Base(path)) || !strings.Contains(problems[0].Error(), "restart its pod") {
			t.Fatalf("the problem names no file or remedy: %v", problems[0])
		}
		if again, problems := load(t, open(t, dir)); len(again) != 1 || len(problems) != 0 {
			t.Fatalf("loaded once more: %d records, %v", len(again), problems)
		}
		if err := os.Remove(aside[0]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrashWhileWriting starts with the remains of a crash at each moment of Put: a temporary file
// of any length beside the old record.
func TestCrashWhileWriting(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir), record(1))
	path := files(t, dir, ".json")[0]
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) + 1 {
		if err := os.WriteFile(path+".tmp", whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		records, problems := load(t, open(t, dir))
		if len(records) != 1 || len(problems) != 0 || !reflect.DeepEqual(records[0], record(1)) {
			t.Fatalf("crash after %d bytes: %+v, %v", n, records, problems)
		}
		if left := files(t, dir, ".tmp"); len(left) != 0 {
			t.Fatalf("crash after %d bytes: %v is left", n, left)
		}
	}
}

func TestEveryByteChanged(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir), record(1))
	path := files(t, dir, ".json")[0]
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newer := 0
	for n := range whole {
		b := slices.Clone(whole)
		b[n] ^= 0x0a
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		records, problems, err := open(t, dir).Load()
		if err != nil {
			newer++ // a newer version number
			continue
		}
		if len(records)+len(problems) != 1 {
			t.Fatalf("byte %d changed: %d records, %v", n, len(records), problems)
		}
		for _, r := range records {
			if err := r.Validate(); err != nil || r.ID() != record(1).ID() {
				t.Fatalf("byte %d changed: loaded %+v, %v", n, r, err)
			}
		}
	}
	if newer > 1 {
		t.Errorf("%d changes made the store unusable", newer)
	}
}

func TestBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, record(1))
	name := files(t, dir, ".json")[0]
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, strings.Repeat("0", 32)+".json")
	for what, content := range map[string]string{
		"empty":             "",
		"null":              "null",
		"array":             "[]",
		"text":              "hello",
		"nul":               strings.Repeat("\x00", 500),
		"unknown field":     strings.Replace(string(good), `"uid"`, `"secret"`, 1),
		"no version":        strings.Replace(string(good), `"version": 1`, `"version": 0`, 1),
		"two values":        string(good) + string(good),
		"huge":              string(good) + strings.Repeat(" ", 257<<10),
		"another's":         string(good), // in a file whose name is not that of the endpoint
		"address of a kind": strings.Replace(string(good), `"10.0.0.1"`, `"10.0.0.1000"`, 1),
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.WriteFile(other, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			records, problems := load(t, s)
			if len(records) != 1 || len(problems) != 1 {
				t.Errorf("%d records, %v", len(records), problems)
			}
		})
	}
	if n := len(files(t, dir, ".broken*")); n != 11 {
		t.Errorf("%d files were moved aside, want 11", n)
	}
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, problems := load(t, s); len(problems) != 1 || !strings.Contains(problems[0].Error(), "not a regular file") {
		t.Errorf("a directory in place of a record: %v", problems)
	}
}

func TestNewerRecordStopsTheStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, record(1))
	path := files(t, dir, ".json")[0]
	text := `{"version": 2, "shape": "another"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.Load()
	if err == nil || !strings.Contains(err.Error(), "newer version") || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != text {
		t.Error("the newer record was touched")
	}
}

func TestPutFails(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, record(1))
	path := files(t, dir, ".json")[0]
	if err := os.Mkdir(path+".tmp", 0o700); err != nil { // the temporary file cannot be written
		t.Fatal(err)
	}
	changed := record(1)
	changed.State = endpoint.Adding
	var fault *os.PathError
	if err := s.Put(changed); !errors.As(err, &fault) {
		t.Fatalf("got %v", err)
	}
	if got, _ := load(t, s); len(got) != 1 || got[0].State != endpoint.Ready {
		t.Errorf("after a write that did not work: %+v", got)
	}
}

func TestOpen(t *testing.T) {
	if _, err := endpoint.Open("relative/dir"); err == nil || !strings.Contains(err.Error(), "must be absolute") {
		t.Errorf("got %v", err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := endpoint.Open(file); err == nil {
		t.Error("a file was opened as a record directory")
	}
}

func FuzzLoad(f *testing.F) {
	dir := f.TempDir()
	s, err := endpoint.Open(dir)
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Put(record(1)); err != nil {
		f.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	good, err := os.ReadFile(names[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(names[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		records, _, err := s.Load()
		if err != nil {
			return
		}
		for _, r := range records {
			if err := s.Put(r); err != nil {
				t.Errorf("what was loaded cannot be written: %v", err)
			}
		}
		for _, name := range files(t, dir, ".broken*") {
			os.Remove(name)
		}
	})
}

// Read reads what the agent wrote while the agent may run: it changes nothing, and a damaged record is an error.
func TestReadChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "endpoints")
	if all, err := endpoint.Read(dir); err != nil || len(all) != 0 {
		t.Errorf("missing directory: %v, %v", all, err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("Read made the directory")
	}
	s, err := endpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := endpoint.Record{State: endpoint.Ready, Kind: endpoint.Migrated, ContainerID: "c", IfName: "eth0", NetNS: "/n", Namespace: "a", Name: "b",
		IPs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Created: time.Unix(1, 0)}
	if err := s.Put(r); err != nil {
		t.Fatal(err)
	}
	if all, err := endpoint.Read(dir); err != nil || len(all) != 1 || all[0].ID() != r.ID() || all[0].Kind != endpoint.Migrated {
		t.Errorf("%+v, %v", all, err)
	}
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := endpoint.Read(dir); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("damaged record: %v", err)
	}
	if _, err := os.Stat(bad); err != nil {
		t.Errorf("Read moved the damaged record: %v", err)
	}
}
