// SPDX-License-Identifier: Apache-2.0

// Command isthmus-agent runs on every node: it watches the cluster, compiles
// its policies for the node, attaches pods when the CNI plugin asks, and keeps
// the data path in force. It exits with status 0 after SIGTERM or SIGINT, 1
// after an error at run time, and 2 if the command line is not right. What is
// in force stays in force while it is away.
//
// All wiring is here; the work is done by the packages that it puts together.
package main
