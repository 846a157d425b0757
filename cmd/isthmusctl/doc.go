// SPDX-License-Identifier: Apache-2.0

// Command isthmusctl shows what the agent of this node does. It exits with
// status 0 if all is well, 1 after an error, 2 if the command line is not
// right, and 3 if the agent answers but the node is not ready.
//
// It changes nothing.
package main
