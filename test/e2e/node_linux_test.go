// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestEndedNode: a wait for a node ends at once with an error if the program of that node has ended, and not after minutes.
func TestEndedNode(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if ended(cmd.Process) {
		t.Error("a running program counts as ended")
	}
	in.Close()
	began := time.Now()
	for !ended(cmd.Process) && time.Since(began) < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	l := &lab{}
	if err := l.waitForNode(context.Background(), &node{name: "local1", init: cmd}); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("error %v, want that the program has ended", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the exit status is lost: %v", err)
	}
}
