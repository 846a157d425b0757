// SPDX-License-Identifier: Apache-2.0

// Package follow follows flows on the nodes of both ends, by isthmusctl trace in the pods of their agents.
//
// It prints nothing.
package follow
