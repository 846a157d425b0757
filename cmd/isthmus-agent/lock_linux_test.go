// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestNextAgentWaits starts an agent while the previous one is still ending.
func TestNextAgentWaits(t *testing.T) {
	m := newMachine(t, 1)
	m.start(0)
	if _, err := m.add(0); err != nil {
		t.Fatalf("%v\n%s", err, m.log.String())
	}
	if err := m.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	next := &machine{t: t, dir: m.dir, datapath: m.datapath, netns: m.netns, prefix: []string{"sh", "-c", `exec "$0" "$@" >` + log + " 2>&1"}}
	next.start(0)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(log)
		if strings.Contains(string(text), "waiting for another agent that uses the same directory") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the next agent does not wait:\n%s", text)
		}
	}
	if _, err := os.Stat(m.socket()); err != nil {
		t.Error("the socket of the agent that ends was taken away")
	}
	m.cmd.Process.Kill()
	<-m.ended
	if _, err := next.add(0); err != nil {
		text, _ := os.ReadFile(log)
		t.Fatalf("%v\n%s", err, text)
	}
	if err := next.stop(); err != nil {
		t.Errorf("the next agent: %v", err)
	}
}

// TestSecondAgentOnTheSameMaps starts an agent with a separate state directory and socket on the maps of
// another one.
func TestSecondAgentOnTheSameMaps(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("needs root, for network namespaces and BPF")
	}
	node := hold(t, syscall.CLONE_NEWNET|syscall.CLONE_NEWNS)
	enter := []string{"nsenter", "--net=" + node + "/ns/net", "--mount=" + node + "/ns/mnt"}
	pins := t.TempDir()
	for _, line := range []string{"mount --make-rprivate /", "mount -t bpf bpf " + pins, "ip link add up0 type veth peer name up1", "ip link set up1 up", "ip address add 192.0.2.1/24 dev up0", "ip link set up0 up"} {
		words := append(enter[:len(enter):len(enter)], strings.Fields(line)...)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	agents := make([]*machine, 2)
	for i := range agents {
		agents[i] = newMachine(t, 1)
		agents[i].datapath, agents[i].prefix = "real", enter
		agents[i].extraArgs = []string{"--bpffs", filepath.Join(pins, "isthmus"), "--uplink", "up0", "--lock-timeout", "0s"}
	}
	agents[0].start(0)
	if err := agents[0].gc(nil); err != nil {
		t.Fatalf("%v\n%s", err, agents[0].log.String())
	}
	agents[1].start(0)
	want := "lock directory " + filepath.Join(pins, "isthmus") + ": process "
	if err := agents[1].gaveUp(); err == nil || !strings.Contains(agents[1].log.String(), want) {
		t.Errorf("the second agent: %v, want %q\n%s", err, want, agents[1].log.String())
	}
	if err := agents[0].gc(nil); err != nil {
		t.Errorf("the first agent: %v", err)
	}
	if err := agents[0].stop(); err != nil {
		t.Error(err)
	}
	agents[1].start(0) // the lock ends with its holder
	if err := agents[1].gc(nil); err != nil {
		t.Errorf("%v\n%s", err, agents[1].log.String())
	}
	if err := agents[1].stop(); err != nil {
		t.Error(err)
	}
}
