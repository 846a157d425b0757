// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// hold starts a process in new namespaces that lives until the test ends, and returns its directory in
// /proc.
func hold(t *testing.T, flags uintptr) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{"ISTHMUS_TEST_DATAPATH=wait"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	return fmt.Sprintf("/proc/%d", cmd.Process.Pid)
}

// node makes a node: namespaces with an uplink, and a directory with a bpffs. enter is the command that runs another there.
func node(t *testing.T) (enter []string, dir string, inNode func(line string) string) {
	t.Helper()
	at := hold(t, syscall.CLONE_NEWNET|syscall.CLONE_NEWNS)
	enter = []string{"nsenter", "--net=" + at + "/ns/net", "--mount=" + at + "/ns/mnt"}
	inNode = func(line string) string {
		t.Helper()
		words := append(slices.Clone(enter), strings.Fields(line)...)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return string(out)
	}
	dir = t.TempDir()
	inNode("mount --make-rprivate /")
	inNode("mount -t bpf bpf " + dir)
	for _, line := range []string{"link set lo up", "link add up0 type veth peer name up1", "link set up1 up", "address add 192.0.2.1/24 dev up0", "link set up0 up"} {
		inNode("ip " + line)
	}
	return enter, dir, inNode
}

// TestRestartOfTheNode starts an agent on a node that restarted: interfaces, namespaces and pins are gone, and records are
// there. Without any DEL the addresses become free.
func TestRestartOfTheNode(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("needs root")
	}
	t.Parallel()
	m := newMachine(t, 3)
	m.datapath = "real"
	pods := make(map[int]string)
	m.netns = func(n int) string { return pods[n] + "/ns/net" }
	for boot := range 2 {
		pods[boot] = hold(t, syscall.CLONE_NEWNET)
		enter, dir, _ := node(t)
		m.prefix, m.extraArgs = enter, []string{"--bpffs", filepath.Join(dir, "isthmus"), "--uplink", "up0"}
		m.start(0)
		if _, err := m.add(boot); err != nil {
			t.Error(err)
		}
		if err := m.stop(); err != nil || t.Failed() {
			t.Fatalf("%v\n%s", err, m.log.String())
		}
		if _, recorded := m.traces(); !slices.Equal(recorded, []string{fmt.Sprintf("c%d:eth0[]", boot)}) {
			t.Errorf("records %q after boot %d", recorded, boot)
		}
		pid, err := strconv.Atoi(filepath.Base(pods[boot]))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL) // the namespace ends with the process
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestKillWithTheRealDataPath does what TestKillAtEveryStep does with the eBPF
// data path in a network namespace: real interfaces and maps, of which nothing
// may leak.
func TestKillWithTheRealDataPath(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("needs root and takes half a minute")
	}
	t.Parallel()
	enter, dir, inNode := node(t)
	kills := 0
	for at := 1; ; at++ {
		m := newMachine(t, 3)
		var pods []string
		for range 3 {
			pods = append(pods, hold(t, syscall.CLONE_NEWNET))
		}
		m.datapath, m.prefix = "real", enter
		m.netns = func(n int) string { return pods[n] + "/ns/net" }
		m.extraArgs = []string{"--bpffs", filepath.Join(dir, "isthmus"), "--uplink", "up0"}
		answered, killed := m.killed(at)
		m.recovers(at, answered, func() {
			if n := strings.Count(inNode("ip -o link show type veth"), ": ist"); n != len(answered) {
				t.Errorf("kill at step %d: %d interfaces for %d pods\n%s", at, n, len(answered), inNode("ip -o link"))
			}
			if err := m.gc(nil); err != nil { // removes everything before the next round
				t.Error(err)
			}
		})
		if out := inNode("ip -o link show type veth"); strings.Contains(out, ": ist") {
			t.Fatalf("interfaces are left after GC of everything:\n%s", out)
		}
		if !killed {
			break
		}
		kills++
	}
	t.Logf("kills=%d", kills)
	if kills < 30 {
		t.Errorf("only %d kills", kills)
	}
}
