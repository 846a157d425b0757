// SPDX-License-Identifier: Apache-2.0

// Command isthmusctl answers questions about policies, from a directory of
// manifests or from an API server (compile, explain, matrix, diff, lint, test,
// verify), and shows what the agent of this node does (status, endpoints).
//
// The first kind exits with status 0 for yes, 1 for no (denied, different,
// found, failed), and 2 if it cannot tell. The second exits with 0 if all is
// well, 1 after an error, 2 if the command line is not right, and 3 if the agent
// answers but the node is not ready.
//
// doctor needs neither: it looks at the node itself.
//
// It changes nothing.
package main
