// SPDX-License-Identifier: Apache-2.0

// Package explain says how one flow of a cluster is decided: at each end that is a
// pod which policies apply to, the rule that decides, every rule that was looked at
// and why it does not match, and the single edits of a policy that would turn the
// verdict.
//
// The decision is that of the reference in common/policy. The caller says what a
// platform really enforces there, because the backends know that. The package reads
// no files and prints nothing.
package explain
