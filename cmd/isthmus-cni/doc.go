// SPDX-License-Identifier: Apache-2.0

// Command isthmus-cni is the CNI plugin that container runtimes execute. It reads its request from the
// environment and standard input as the CNI specification defines, and has no flags.
//
// Package cni implements the plugin. Only isthmus-agent keeps state.
package main
