// SPDX-License-Identifier: Apache-2.0

// Command isthmusctl answers queries about policies, from a directory of
// manifests or from an API server (compile, explain, matrix, diff, lint, test,
// verify), and shows what the agent of this node does (status, endpoints).
//
// They exit with status 0 for yes, 1 for no (denied, different, found, failed),
// and 2 if there is no answer, also because no agent runs. status exits with 3
// if the agent answers but the node is not ready.
//
// doctor needs neither: it checks the node itself. ui serves web pages until it is interrupted.
//
// The packages query, check and ui hold the commands about policies, node those
// about this node. This package only wires them. The commands change nothing.
package main
