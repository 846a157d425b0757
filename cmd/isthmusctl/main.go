// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"

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
	os.Exit(env{stdout: os.Stdout, stderr: os.Stderr, dial: socket.Dial}.run(ctx, os.Args[1:]))
}
