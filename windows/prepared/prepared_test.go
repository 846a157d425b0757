// SPDX-License-Identifier: Apache-2.0

package prepared

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

var settings = model.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Searches: []string{"shop.svc.cluster.local"}}

func TestStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prepared.json")
	open := func() *Store {
		s, err := Open(file)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := open()
	must(s.Put("a", Entry{DNS: settings}))
	must(s.Put("b", Entry{}))
	must(s.Put("b", Entry{Owner: "c1:eth0"}))
	s = open()
	if e, ok := s.Get("a"); !ok || !e.DNS.Equal(settings) || e.Owner != "" {
		t.Errorf("a: %+v", e)
	}
	if !reflect.DeepEqual(s.Unused(), []string{"a"}) || !reflect.DeepEqual(s.Of("c1:eth0"), []string{"b"}) || s.Of("") != nil || s.Used() != 1 {
		t.Errorf("unused %v, of c1 %v, %d used", s.Unused(), s.Of("c1:eth0"), s.Used())
	}
	must(s.Remove("a", "unknown"))
	must(s.Remove("b"))
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file of no entries: %v", err)
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil || info.Mode().Perm() == 0 {
		t.Error(err)
	}
}

// TestStoreCannotWrite checks that an entry that could not be stored does not exist.
func TestStoreCannotWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prepared.json")
	s, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put("a", Entry{}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(file+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Put("a", Entry{Owner: "c1:eth0"}); err == nil {
		t.Error("no error")
	}
	if err := s.Put("b", Entry{}); err == nil {
		t.Error("no error")
	}
	if e, ok := s.Get("a"); !ok || e.Owner != "" {
		t.Errorf("a: %+v", e)
	}
	if _, ok := s.Get("b"); ok {
		t.Error("b counts")
	}
}

// TestDamagedStore checks that a damaged file is moved aside.
func TestDamagedStore(t *testing.T) {
	for _, text := range []string{"", "{", `[]`, `{"a":{"dns":{"servers":["::ffff:0.0.0.0%x"]}}}`, `{"a":{"dns":{"searches":[" "]}}}`} {
		file := filepath.Join(t.TempDir(), "prepared.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(file)
		if err == nil || !strings.Contains(err.Error(), file+".broken") || len(s.Unused()) > 0 {
			t.Errorf("%.20q: %v", text, err)
		}
		if _, err := os.Stat(file + ".broken"); err != nil {
			t.Error(err)
		}
		if err := s.Put("a", Entry{}); err != nil {
			t.Error(err)
		}
	}
}

func FuzzStore(f *testing.F) {
	f.Add([]byte(`{"spare-10.0.1.7_prepared-endpoint_isthmus":{"dns":{"servers":["10.96.0.10"]},"owner":"c1:eth0"}}`))
	f.Add([]byte(`{"a":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := &Store{all: make(map[string]Entry)}
		if s.decode(text) != nil {
			return
		}
		if len(s.Unused())+s.Used() != len(s.all) {
			t.Error("an entry is neither used nor unused")
		}
		for _, e := range s.all {
			if e.DNS.Validate() != nil {
				t.Errorf("invalid settings %v", e.DNS)
			}
		}
	})
}
