// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "build: the programs of Kubernetes are for tests on Linux")
	os.Exit(1)
}
