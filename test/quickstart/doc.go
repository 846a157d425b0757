// SPDX-License-Identifier: Apache-2.0

// Package quickstart runs the commands of docs/quickstart.md as they are written there, and
// compares what they print. make test-cluster runs it.
package quickstart
