// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// version is set by the linker.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(env{stdout: os.Stdout, stderr: os.Stderr, dial: socket.Dial}.run(ctx, os.Args[1:]))
}
