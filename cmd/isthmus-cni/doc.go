// SPDX-License-Identifier: Apache-2.0

// Command isthmus-cni is the CNI plugin that container runtimes execute. It
// takes its orders from the environment and standard input as the CNI
// specification says, and has no flags.
//
// Package cni does the work, isthmus-agent all that lasts.
package main
