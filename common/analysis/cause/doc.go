// SPDX-License-Identifier: Apache-2.0

// Package cause finds the policies that are responsible for a difference between two
// versions of a cluster. It divides the changes that package reach finds into parts with
// the same responsible policies.
//
// A policy is responsible if its edit alone changes the verdict of the first version, or if
// the verdict of the second version needs it. The reference evaluator in common/policy
// decides both. If no single edit does, the edits that select an end are responsible
// together.
//
// It prints nothing and reads no files.
package cause
