// SPDX-License-Identifier: Apache-2.0

// Package explain reports how policies decide one flow of a cluster. For each end
// that is a pod with policies it reports the rule that decides, and every other rule
// with the reason why it does not match. It also lists the single edits of a policy
// that would reverse the verdict.
//
// The decision is that of the reference evaluator in common/policy. The caller
// reports what a platform enforces, because the backends know that. The package reads
// no files and prints nothing.
package explain
