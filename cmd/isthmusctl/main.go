// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// version is set by the linker.
var version = "devel"

// gcPercent lets the heap grow to four times its live size before a collection. Queries
// about large clusters allocate many short-lived objects, mostly small ones.
const gcPercent = 300

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, cli.Env{Stdout: os.Stdout, Stderr: os.Stderr, Dial: socket.Dial, Program: filepath.Base(os.Args[0])}, os.Args[1:]))
}
