// SPDX-License-Identifier: Apache-2.0

// Command build builds the programs of Kubernetes that it is given the names
// of, all if none is given, and prints the directory that they are in.
//
// It does not run them.
package main
