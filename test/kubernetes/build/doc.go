// SPDX-License-Identifier: Apache-2.0

// Command build builds the named programs of Kubernetes, or all without arguments, and prints
// the directory of the programs.
//
// It does not run them.
package main
