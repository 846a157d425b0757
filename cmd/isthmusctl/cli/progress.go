// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"time"
)

// ProgressEvery is the interval between two progress lines of a long run.
const ProgressEvery = 5 * time.Second

// Remark prints a remark on stderr, unless quiet is set.
func (e Env) Remark(quiet bool, text string) {
	if !quiet {
		fmt.Fprintf(e.Stderr, "isthmusctl: %s\n", text)
	}
}

// Progress returns a function that reports the progress of a long run on stderr, at most
// every ProgressEvery. It belongs to one goroutine.
func (e Env) Progress(command, what string) func(done, total int) {
	started := time.Now()
	said := started
	return func(done, total int) {
		now := time.Now()
		if now.Sub(said) < ProgressEvery {
			return
		}
		said = now
		fmt.Fprintf(e.Stderr, "%s: %d of %d %s after %s\n", command, done, total, what, now.Sub(started).Round(time.Second))
	}
}
