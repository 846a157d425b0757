// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/endpoint"
)

// fillDisk makes every write of a new file fail as on a full disk, until the returned function is
// called. It uses the hook of steps.
func (r *rig) fillDisk(then func(step string)) (empty func()) {
	r.onStep(func(step string) {
		for n := range 9 {
			if err := os.Symlink("/dev/full", r.recordPath(n)+".tmp"); err != nil && !errors.Is(err, os.ErrExist) {
				r.t.Error(err)
			}
		}
		then(step)
	})
	return func() {
		r.step.Store(nil)
		for n := range 9 {
			os.Remove(r.recordPath(n) + ".tmp")
		}
	}
}

// TestFullDisk detaches pods while the disk is full, and restarts the agent.
func TestFullDisk(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 6}.snapshot())
		var given []netip.Addr
		for n := range 4 {
			given = append(given, r.mustAdd(n)...)
		}
		empty := r.fillDisk(func(string) {})
		r.mustDel(0)
		r.mustDel(0) // again
		if removed, err := r.gc(2, 3); err != nil || fmt.Sprint(removed) != "[c1:eth0]" {
			t.Errorf("GC removed %v, %v", removed, err)
		}
		r.wantOnly(2, 3)
		for range 2 { // the second time in an agent that knows no more than the disk
			if got, want := r.records()[endpoint.Released], []string{"c0:eth0", "c1:eth0"}; !slices.Equal(got, want) {
				t.Errorf("tombstones of %v, want %v", got, want)
			}
			_, err := r.add(4)
			wantCode(t, err, 5, "record pod shop/web-4: write record of c4:eth0: write "+r.recordPath(4)+".tmp: no space left on device: free space or inodes on the disk of "+r.dir)
			if r.reachable(4) {
				t.Error("a pod that was refused is reachable")
			}
			r.wantOnly(2, 3)
			r.end()
			r.start()
			r.agent.Publish(cluster{pods: 6}.snapshot())
			r.settle()
		}
		empty()
		if ip := r.mustAdd(4)[0]; slices.Contains(given, ip) {
			t.Errorf("%s is given out in its quarantine, of %v", ip, given)
		}
		time.Sleep(31 * time.Second)
		r.wantOnly(2, 3, 4)
		if got := r.records()[endpoint.Released]; len(got) > 0 {
			t.Errorf("tombstones of %v after the quarantine", got)
		}
		if got := r.problems(); got != "0" {
			t.Errorf("%s problems", got)
		}
		r.end()
	})
}

// TestFullDiskAfterTheIntent fills the disk during an ADD, which must leave nothing. Peers may have
// seen its address, which stays in quarantine.
func TestFullDiskAfterTheIntent(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.settle()
		empty := func() {}
		r.onStep(func(step string) {
			if step == "add.attach" {
				empty = r.fillDisk(func(string) {})
			}
		})
		_, err := r.add(0)
		wantCode(t, err, 5, "no space left on device")
		if r.reachable(0) {
			t.Error("a pod that was refused is reachable")
		}
		r.wantOnly()
		empty()
		if got := r.records(); fmt.Sprint(got) != "map[released:[c0:eth0]]" {
			t.Errorf("records %v", got)
		}
		first := r.mustAdd(1)
		if r.mustDel(1); first[0] != netip.MustParseAddr("10.0.1.3") {
			t.Errorf("pod 1 has %v, want the address after the one in quarantine", first)
		}
		r.end()
	})
}

// TestFullDiskWithoutTombstone removes a record that is too large to be overwritten. Only this
// agent then has the quarantine.
func TestFullDiskWithoutTombstone(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		ips := r.mustAdd(0)
		if err := os.WriteFile(r.recordPath(0), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		empty := r.fillDisk(func(string) {})
		r.mustDel(0)
		r.wantOnly()
		if got := r.records(); len(got) != 0 {
			t.Errorf("records %v", got)
		}
		empty()
		if next := r.mustAdd(1); next[0] == ips[0] {
			t.Errorf("%s is given out in its quarantine", ips)
		}
		if got := r.metric(`isthmus_ipam_addresses{pool="10.0.1.0/24",state="quarantined"}`); got != "1" {
			t.Errorf("%s addresses in quarantine, want 1", got)
		}
		time.Sleep(31 * time.Second)
		r.wantOnly(1)
		if got := r.metric(`isthmus_ipam_addresses{pool="10.0.1.0/24",state="quarantined"}`); got != "0" {
			t.Errorf("%s addresses in quarantine after it", got)
		}
		r.end()
	})
}

// TestCrashOnFullDisk kills the agent at every step of the removal of a pod
// while the disk is full, and starts the next one on it. Nothing may be left of
// the pod, and the quarantine may not be forgotten once DEL was answered.
func TestCrashOnFullDisk(t *testing.T) {
	crashes := 0
	for at, survived := 1, false; !survived; at++ {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.start()
			r.agent.Publish(cluster{pods: 4}.snapshot())
			ips := r.mustAdd(0)
			r.mustAdd(1)
			r.settle()
			steps := 0
			count := func() {
				if steps++; steps == at {
					runtime.Goexit()
				}
			}
			r.fillDisk(func(string) { count() })
			r.fake.SetFault(func(context.Context, string) error { count(); return nil })
			answered := r.del(0) == nil
			r.settle()
			select {
			case <-r.ended:
				r.stop()
				crashes++
			default:
				survived = true
				r.end()
			}
			r.fake.SetFault(nil)
			empty := r.fillDisk(func(string) {})
			r.start()
			r.agent.Publish(cluster{pods: 4}.snapshot())
			r.settle()
			r.mustDel(0)
			r.wantOnly(1)
			if got := r.records()[endpoint.Released]; len(got) != 1 {
				t.Errorf("DEL answered: %t, tombstones %v", answered, got)
			}
			empty()
			if next := r.mustAdd(2); next[0] == ips[0] {
				t.Errorf("DEL answered: %t, %s is given out in its quarantine", answered, ips)
			}
			r.end()
		})
		if t.Failed() {
			t.Fatalf("crash at step %d", at)
		}
	}
	if crashes < 3 {
		t.Errorf("only %d crashes", crashes)
	}
	t.Logf("crashes=%d", crashes)
}

// TestReallyFullDisk detaches pods on a small tmpfs. It fills the tmpfs to the last byte, then to
// the last inode, and then makes it read-only.
func TestReallyFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a file system")
	}
	small := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("isthmus", small, "tmpfs", 0, "size=128k,nr_inodes=64"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(small, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	run(t, func(t *testing.T, r *rig) {
		r.dir = filepath.Join(small, "endpoints")
		r.change = func(c *agent.Config) { c.RecordDir = r.dir }
		r.start()
		r.agent.Publish(cluster{pods: 8}.snapshot())
		var given []netip.Addr
		for n := range 4 {
			given = append(given, r.mustAdd(n)...)
		}
		withoutSpace(t, r, small)
		withoutInodes(t, r, small, given)
		readOnly(t, r, small)
		r.end()
	})
}

func withoutSpace(t *testing.T, r *rig, small string) {
	t.Helper()
	filler := filepath.Join(small, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(bytes.Repeat([]byte{1}, 4096))
	}
	f.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	r.mustDel(0)
	r.wantOnly(1, 2, 3)
	_, err = r.add(5)
	wantCode(t, err, 5, "no space left on device: free space or inodes on the disk of "+r.dir)
	r.wantOnly(1, 2, 3)
	os.Remove(filler)
}

// withoutInodes also checks that no address is assigned again during its quarantine.
func withoutInodes(t *testing.T, r *rig, small string, given []netip.Addr) {
	t.Helper()
	var err error
	filler := filepath.Join(small, "filler")
	inodes := 0
	for ; err == nil || inodes == 0; inodes++ {
		err = os.WriteFile(fmt.Sprintf("%s.%d", filler, inodes), nil, 0o600)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	r.mustDel(1)
	_, err = r.add(5)
	wantCode(t, err, 5, "no space left on device")
	r.wantOnly(2, 3)
	r.end()
	r.start() // also on a disk without an inode
	r.agent.Publish(cluster{pods: 8}.snapshot())
	r.settle()
	r.wantOnly(2, 3)
	for n := range inodes {
		os.Remove(fmt.Sprintf("%s.%d", filler, n))
	}
	if ip := r.mustAdd(5)[0]; slices.Contains(given, ip) {
		t.Errorf("%s is given out in its quarantine, of %v", ip, given)
	}
}

func readOnly(t *testing.T, r *rig, small string) {
	t.Helper()
	remount(t, small, syscall.MS_RDONLY)
	wantCode(t, r.del(2), 5, "read-only file system: mount the disk of "+r.dir+" read-write")
	if slices.Contains(r.attached(), string(id(2))) || r.reachable(2) {
		t.Error("the pod is attached")
	}
	r.end()
	r.start() // an agent starts there, and attachments stay
	r.agent.Publish(cluster{pods: 8}.snapshot())
	r.settle()
	if !slices.Contains(r.attached(), string(id(3))) {
		t.Errorf("attached %v", r.attached())
	}
	wantCode(t, r.del(2), 5, "read-only file system")
	remount(t, small, 0)
	r.mustDel(2)
	r.wantOnly(3, 5)
}

func remount(t *testing.T, path string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount("isthmus", path, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
		t.Fatal(err)
	}
}
