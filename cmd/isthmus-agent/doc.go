// SPDX-License-Identifier: Apache-2.0

// Command isthmus-agent runs on every node: it watches the cluster, compiles its policies for the node,
// attaches pods for the CNI plugin, and keeps the data path in force. It exits with status 0 after SIGTERM
// or SIGINT, 1 after an error at run time, and 2 if the command line is invalid. Policy stays in force
// while the agent is down.
//
// This package only wires other packages together; it implements none of this work.
package main
