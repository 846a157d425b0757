// SPDX-License-Identifier: Apache-2.0

// Package complete adds to the objects of manifests what a running cluster would
// add, or what a question needs: nodes and addresses for pods without (Place), pods
// for policies that select none (Witnesses), and pods that tell two versions of
// policies apart (Assume).
//
// Equal objects are completed alike. The package reads no files, decides nothing,
// and returns what it assumed, so that the caller can report it.
package complete
