// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/endpoint"
)

// block prevents the write of the record of pod n, until the returned function is called.
func (r *rig) block(n int) (unblock func()) {
	path := r.recordPath(n) + ".tmp"
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		r.t.Fatal(err)
	}
	return func() { os.RemoveAll(path) }
}

// blockRecord replaces the record by an object that is not a file.
func (r *rig) blockRecord(n int) (unblock func()) {
	path := r.recordPath(n)
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		r.t.Fatal(err)
	}
	return func() { os.RemoveAll(path) }
}

// recordPath is the file of pod n's record.
func (r *rig) recordPath(n int) string {
	h := sha256.Sum256([]byte(id(n)))
	return filepath.Join(r.dir, hex.EncodeToString(h[:16])+".json")
}

func TestRecordCannotBeWritten(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.settle()
		unblock := r.block(0)
		_, err := r.add(0)
		wantCode(t, err, 5, "record pod shop/web-0")
		if got := r.fake.Log(); slices.Contains(got, "add "+string(id(0))) {
			t.Errorf("the data path was changed before the intent was on record: %q", got)
		}
		unblock()
		// The record cannot be marked ready.
		r.onStep(func(name string) {
			if name == "add.ready" {
				unblock = r.block(0)
			}
		})
		_, err = r.add(0)
		wantCode(t, err, 5, "record pod shop/web-0")
		if r.reachable(0) {
			t.Error("a pod that was refused is reachable")
		}
		r.step.Store(nil)
		unblock()
		time.Sleep(time.Minute)
		r.wantOnly()
		r.mustAdd(0)
		// The agent can neither write a tombstone nor remove the record.
		unblock = r.block(0)
		unblockRecord := r.blockRecord(0)
		wantCode(t, r.del(0), 5, "record that pod shop/web-0 is detached")
		if r.reachable(0) || len(r.attached()) > 0 {
			t.Error("the pod is still attached")
		}
		unblock()
		unblockRecord()
		r.mustDel(0)
		r.wantOnly()
		r.end()
	})
}

func TestBrokenRecordAtStart(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		r.end()
		path := r.recordPath(0)
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.settle()
		r.wantOnly(1)
		if got := r.problems(); got != "1" {
			t.Errorf("%s problems", got)
		}
		if _, err := os.Stat(path + ".broken"); err != nil {
			t.Errorf("the broken record is not there any more: %v", err)
		}
		r.end()
	})
}

func TestNewerRecordKeepsTheAgentFromStarting(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.mustAdd(0)
		r.end()
		path := r.recordPath(0)
		if err := os.WriteFile(path, []byte(`{"version": 9}`), 0o600); err != nil {
			t.Fatal(err)
		}
		r.start()
		err := <-r.ended
		if err == nil || !strings.Contains(err.Error(), "newer version") {
			t.Errorf("ended with %v", err)
		}
		r.stop()
		if !r.reachable(0) {
			t.Error("the data path was touched")
		}
	})
}

// TestReusedPath starts an agent when the path of a pod's network namespace leads to another one, as a reused /proc/PID/ns/net.
// That one does not become the pod.
func TestReusedPath(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.end()
		r.fake.ReplaceNetNS(addRequest(0).Netns)
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.settle()
		wantCode(t, r.check(0), 104, "broken")
		if got := r.problems(); got == "0" {
			t.Error("the lost namespace is not reported as a problem")
		}
		r.mustDel(0)
		r.mustAdd(1)
		r.wantOnly(1)
		r.end()
	})
}

// TestRebootedNode starts an agent on records of pods that ended with the node. The runtime sends no DEL and no GC for them: it
// may have lost its own state, and in mode policy DEL succeeds without an agent. Their addresses become free.
func TestRebootedNode(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		first := r.mustAdd(0)
		r.mustAdd(1)
		r.end()
		r.fake.Reboot()
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.settle()
		if got := r.problems(); got != "0" {
			t.Errorf("%s problems", got)
		}
		again := addRequest(0)
		again.Attachment.ContainerID, again.Netns = "c8", "/run/netns/c8"
		ips, err := r.addContext(context.Background(), again)
		if err != nil || slices.Equal(ips, first) {
			t.Errorf("the new sandbox has %v, %v, want other addresses than %v, which are in quarantine", ips, err, first)
		}
		wantCode(t, r.check(1), 104, "does not exist")
		r.mustDel(0) // a late one
		r.wantOnly(8)
		time.Sleep(31 * time.Second)
		if got := r.records(); len(got[endpoint.Released]) > 0 {
			t.Errorf("addresses are not free: %v", got)
		}
		r.end()
	})
}

// TestLostNamespaces starts an agent that does not find the namespaces of pods whose interfaces exist.
func TestLostNamespaces(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		first := r.mustAdd(0)
		r.mustAdd(1)
		r.end()
		for n := range 2 {
			r.fake.RemoveNetNS(addRequest(n).Netns)
		}
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.settle()
		again := addRequest(0) // the new sandbox of the pod comes before the DEL of the old one
		again.Attachment.ContainerID, again.Netns = "c8", "/run/netns/c8"
		ips, err := r.addContext(context.Background(), again)
		if err != nil || slices.Equal(ips, first) {
			t.Errorf("the new sandbox has %v, %v", ips, err)
		}
		if got := r.problems(); got == "0" {
			t.Error("lost namespaces are not reported as a problem")
		}
		wantCode(t, r.check(1), 104, "broken")
		removed, err := r.gc(8)
		if err != nil || fmt.Sprint(removed) != "[c0:eth0 c1:eth0]" {
			t.Errorf("GC removed %v, %v", removed, err)
		}
		r.settle()
		r.wantOnly(8)
		if got := r.problems(); got != "0" {
			t.Errorf("%s problems after GC", got)
		}
		r.end()
	})
}

func TestUnknownAttachmentsAreRemoved(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		r.end()
		if err := os.RemoveAll(r.dir); err != nil {
			t.Fatal(err)
		}
		tries := 0
		r.fake.SetFault(func(_ context.Context, step string) error {
			if step == "delete.deny" {
				if tries++; tries < 4 {
					return errors.New("busy")
				}
			}
			return nil
		})
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.settle()
		if got := r.problems(); got == "0" {
			t.Error("a failed removal is not reported as a problem")
		}
		time.Sleep(time.Minute)
		r.wantOnly()
		if got := r.problems(); got != "0" {
			t.Errorf("%s problems are left", got)
		}
		r.end()
	})
}

// TestRecordsAreRemoved removes the directory of the records while an agent runs. Pods still start, and the next agent must not take
// the running ones for attachments without a record, which it removes.
func TestRecordsAreRemoved(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		r.mustAdd(1)
		r.settle()
		if err := os.RemoveAll(r.dir); err != nil {
			t.Fatal(err)
		}
		r.mustAdd(2)
		r.mustDel(1)
		time.Sleep(2 * time.Minute)
		r.wantOnly(0, 2)
		r.end()
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.settle()
		r.wantOnly(0, 2)
		r.end()
	})
}

func TestTombstoneOfTheFuture(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		s, err := endpoint.Open(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		gone := endpoint.Record{State: endpoint.Released, ContainerID: "c5", IfName: "eth0", Namespace: "shop", Name: "web-5",
			IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")}, Created: time.Now(), ReleasedAt: time.Now().Add(1000 * time.Hour)}
		if err := s.Put(gone); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		if ips := r.mustAdd(0); ips[0] != netip.MustParseAddr("10.0.1.3") {
			t.Errorf("got %v, want the address after the one in quarantine", ips)
		}
		time.Sleep(31 * time.Second)
		if got := r.records(); len(got[endpoint.Released]) > 0 {
			t.Errorf("tombstone of the future is still there: %v", got)
		}
		r.end()
	})
}
