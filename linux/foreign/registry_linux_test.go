// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func end() HostEnd {
	return HostEnd{Name: "veth0", Index: 7, PeerIndex: 2, PodMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, HostMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Bridge: 3, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")}}
}

// The registry survives a restart of the agent, but not of the node, and only root can read it.
func TestRegistry(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Put("c:eth0", end()); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, fileName)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the registry: %v, %v", info.Mode(), err)
	}
	if r, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	if got, ok := r.Get("c:eth0"); !ok || !got.same(end()) {
		t.Errorf("read back %+v, %t", got, ok)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), r.boot, "another boot", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err = Open(dir); err != nil || len(r.All()) != 0 {
		t.Errorf("after the node started again: %v, %v", r.All(), err)
	}
	for range 2 {
		if err := r.Remove("c:eth0"); err != nil {
			t.Fatal(err)
		}
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"boot":"b","interfaces":{"c:eth0":{"name":"veth0","index":7,"peerIndex":2,"podMac":"AgAAAAAB","hostMac":"AgAAAAAC","addresses":["10.1.0.2"]}}}`))
	f.Add([]byte(`{"interfaces":{"c:eth0":{"name":"../veth0","index":-7}}}`))
	f.Add([]byte(`{"interfaces":{},"held":{"interface:b:7:2":"shop/web/1"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := decode(text)
		if err != nil {
			return
		}
		for id, e := range c.Ends {
			if e.Index <= 0 || e.PeerIndex <= 0 || strings.ContainsAny(e.Name, "/.") || len(e.PodMAC) != 6 || len(e.Addresses) > 2 {
				t.Errorf("accepted %q: %+v", id, e)
			}
		}
	})
}
