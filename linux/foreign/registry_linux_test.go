// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
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

// A loss of power may leave a damaged file. Its interfaces are gone, so the agent starts. A file that is damaged while the node
// runs may be about pods that run.
func TestDamagedRegistry(t *testing.T) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "\x00\x00\x00", `{"boot":"b","interfaces":{"c:`} {
		dir := t.TempDir()
		file := filepath.Join(dir, fileName)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "restart the pods") {
			t.Errorf("%q, written since the node started: %v", text, err)
		}
		before := time.Now().Add(-time.Duration(up.Nano()) - time.Minute)
		if err := os.Chtimes(file, before, before); err != nil {
			t.Fatal(err)
		}
		r, err := Open(dir)
		if err != nil || len(r.All()) > 0 {
			t.Fatalf("%q, written before the node started: %v, %v", text, r, err)
		}
		if err := r.Put("c:eth0", end()); err != nil {
			t.Fatal(err)
		}
		if r, err = Open(dir); err != nil || len(r.All()) != 1 {
			t.Errorf("after the first interface: %v, %v", r, err)
		}
	}
}

// Addresses that no interface can have are not accepted: maps cannot hold them.
func TestAddressesOfTheRegistry(t *testing.T) {
	const file = `{"boot":"b","interfaces":{"c:eth0":{"name":"veth0","index":7,"peerIndex":2,"podMac":"AgAAAAAB","hostMac":"AgAAAAAC","addresses":[%s]}}}`
	for addresses, valid := range map[string]bool{`"10.1.0.2","fd00::2"`: true, `"fd00::2"`: true, ``: true, `""`: false, `"::ffff:10.1.0.2"`: false,
		`"fe80::1%eth0"`: false, `"10.1.0.2","10.1.0.3"`: false, `"10.1.0.2","fd00::2","fd00::3"`: false} {
		if _, err := decode([]byte(strings.Replace(file, "%s", addresses, 1))); (err == nil) != valid {
			t.Errorf("addresses %s: %v, want valid %t", addresses, err, valid)
		}
	}
}

// A removal needs no space: it is kept in memory, and written with a later change. Without a later change, the next
// process finds the interface again. Other errors are returned.
func TestRemoveOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Put("c:eth0", end()), r.Hold("interface:b:7:2", "shop/web/1"), r.Hold("interface:b:8:2", "shop/web/2")); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(dir, fileName+".new")
	if err := os.Symlink("/dev/full", tmp); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Remove("c:eth0"), r.Hold("interface:b:7:2", ""), r.Forget(nil), r.Flush()); err != nil {
		t.Errorf("on a full disk: %v", err)
	}
	if _, ok := r.Get("c:eth0"); ok || r.Held("interface:b:7:2") != "" || r.Held("interface:b:8:2") != "" {
		t.Errorf("after the removals: %+v, %v", r.ends, r.held)
	}
	if err := r.Put("d:eth0", end()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("an interface is added on a full disk: %v", err)
	}
	if err := r.Put("c:eth0", end()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("an interface is added again on a full disk: %v", err)
	}
	if next, err := Read(dir); err != nil || len(next.All()) != 1 {
		t.Errorf("the file on a full disk: %v, %v", next.All(), err)
	}
	if err := errors.Join(os.Remove(tmp), r.Flush()); err != nil {
		t.Fatal(err)
	}
	next, err := Read(dir)
	if err != nil || len(next.All()) != 0 || len(next.held) != 0 {
		t.Errorf("the file after there was space: %+v, %v, %v", next.ends, next.held, err)
	}
	if err := errors.Join(r.Put("c:eth0", end()), os.Mkdir(tmp, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove("c:eth0"); !errors.Is(err, unix.EISDIR) {
		t.Errorf("another error: %v", err)
	}
}

// What the next process reads from the kernel needs no space, and is written once there is some. An interface that the plugin made
// again, and the stage of one that returns to a bridge, must be written.
func TestChangeOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	was, returning := end(), end()
	returning.Bridge, returning.Return = 3, ReturnRequested
	tmp := filepath.Join(dir, fileName+".new")
	if err := errors.Join(r.Put("c:eth0", was), r.Put("r:eth0", returning), os.Symlink("/dev/full", tmp)); err != nil {
		t.Fatal(err)
	}
	now := was
	now.Name, now.Bridge, now.HostMAC = "veth9", 4, net.HardwareAddr{2, 0, 0, 0, 0, 9}
	again, ready := now, returning
	again.Index, ready.Return = 99, ReturnReady
	for name, c := range map[string]struct {
		id   model.EndpointID
		end  HostEnd
		want error
	}{"as the kernel has it": {"c:eth0", now, nil}, "made again": {"c:eth0", again, unix.ENOSPC}, "returns": {"r:eth0", ready, unix.ENOSPC}} {
		if err := r.Put(c.id, c.end); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if got, _ := r.Get("c:eth0"); !got.same(now) {
		t.Errorf("got %+v, want %+v", got, now)
	}
	if err := errors.Join(os.Remove(tmp), r.Flush()); err != nil {
		t.Fatal(err)
	}
	if next, err := Read(dir); err != nil || !next.ends["c:eth0"].same(now) || !next.ends["r:eth0"].same(returning) {
		t.Errorf("the file after there was space: %+v, %v", next.ends, err)
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
