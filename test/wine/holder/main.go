// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(names []string) int {
	for _, name := range names {
		if err := hold(name); err != nil {
			fmt.Fprintf(os.Stderr, "hold %s: %v\n", name, err)
			return 1
		}
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin) // an error ends it as well
	return 0
}
