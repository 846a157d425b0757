// SPDX-License-Identifier: Apache-2.0

// Package complete adds objects to manifests that a running cluster would add, or
// that a query needs. Place adds nodes and addresses for pods without them. AddPlaceholders
// adds placeholder pods for policies that select none. Assume adds pods by
// which two versions of policies can be distinguished.
//
// Equal objects get equal additions. The package reads no files, decides nothing,
// and returns its additions, so that the caller can report them.
package complete
