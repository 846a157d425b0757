// SPDX-License-Identifier: Apache-2.0

// Package lint finds what is likely not meant in the policies of a cluster:
// selectors that match nothing, port names that resolve nowhere, rules that repeat
// others, equal priorities, and more. It also lists every construct of every rule
// with how each platform enforces it.
//
// The caller says what a Platform does not enforce exactly, because the compiler and
// the backends know that. The package reads no files and prints nothing.
package lint
