// SPDX-License-Identifier: Apache-2.0

// Package compile turns the policies of a cluster into the Tables of one node.
//
// A Compiler decides all flows of a node at once, as a model.State of classes
// and Tables. It goes from one State to the next at the cost of the change; Once
// starts from scratch. README.md follows one policy through the stages.
//
// It shares no code with the Evaluator of common/policy beyond the types of
// common/model, so that tests compare two independent implementations. It does no
// I/O and does not encode Tables: linux/policymap and windows/acl do.
package compile
