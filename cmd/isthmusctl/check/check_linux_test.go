// SPDX-License-Identifier: Apache-2.0

package check

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
)

// Without the privilege to load programs --engine all reports that, runs the other engines,
// and fails.
func TestProgramNotRun(t *testing.T) {
	path := clitest.Write(t, "t.jsonl", line(rightQueries))
	var status int
	var out string
	done := make(chan error)
	go func() {
		// Capabilities belong to the thread, which ends with this goroutine.
		runtime.LockOSThread()
		var err error
		if os.Getuid() == 0 {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			err = unix.Capset(&header, &make([]unix.CapUserData, 2)[0])
		}
		if err == nil {
			status, out, _ = ctl("test", "--engine", "all", path)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if status != 1 || !strings.HasPrefix(out, "program: not run: ") || !strings.HasSuffix(out, "test: cases=1 queries=4 engines=4 pass=4 fail=0\n") {
		t.Errorf("exit status %d, %q", status, out)
	}
}
