// SPDX-License-Identifier: Apache-2.0

// Package policy decides what policies mean.
//
// Evaluator answers for one flow at a time by reading the policies top to
// bottom: slow, obvious, the reference for everything else. A Compiler answers
// for all flows of a node at once, as a model.State of classes and tables, and
// goes from one State to the next at the cost of what changed; Compile starts
// from scratch. Evaluator and Compiler share no code beyond the nouns of package
// model, and tests compare them.
//
// It does no I/O, knows no operating system, and does not say how a table is
// encoded: linux/policymap and windows/acl do.
package policy
