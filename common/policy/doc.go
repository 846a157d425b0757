// SPDX-License-Identifier: Apache-2.0

// Package policy is the specification: it decides what policies mean.
//
// Evaluator answers for one flow at a time by reading the policies top to
// bottom: slow, obvious, the reference for everything else. Explain says why.
// Enforce lists the constructs of a policy and how each platform enforces them.
//
// It does not compile policies for a data path. Package compile does, and shares
// no code with this one beyond the nouns of common/model, so that tests can
// compare the two. It does no I/O and knows no operating system.
package policy
