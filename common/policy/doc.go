// SPDX-License-Identifier: Apache-2.0

// Package policy is the specification: it decides what policies mean.
//
// Evaluator decides one flow at a time by reading the policies from top to bottom.
// It is slow and simple, and the reference for everything else. Explain gives the
// reasons of a decision.
// Enforce lists the constructs of a policy and how each platform enforces them.
//
// It does not compile policies for a data path. Package compile does, and shares
// no code with this one beyond the types of common/model, so that tests can
// compare the two. Package policy does no I/O and does not depend on the
// operating system.
package policy
