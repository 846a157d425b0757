// SPDX-License-Identifier: Apache-2.0

// Package lint finds likely mistakes in the policies of a cluster: selectors that
// match nothing, port names that resolve nowhere, rules that repeat others, equal
// priorities, and more. It also lists every construct of every rule and how each
// platform enforces it.
//
// The caller reports what a Platform does not enforce exactly, because the compiler
// and the backends know that. The package reads no files and prints nothing.
package lint
