// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "demo: its nodes are network namespaces: it runs on Linux only")
	os.Exit(1)
}
