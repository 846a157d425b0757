// SPDX-License-Identifier: Apache-2.0

// Package recipe proves "How to add a feature" of CONTRIBUTING.md. testdata/blackhole.patch adds a feature
// as that section describes it: a Kubernetes kind, its noun, a section of the State, and a component for each
// system. The test applies the patch to copies of the edited files, builds the result, and follows an object
// of the kind from a manifest to packets. It fails if the patch edits a file that the section does not list.
//
// The feature is an example and not part of the product.
package recipe
