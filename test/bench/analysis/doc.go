// SPDX-License-Identifier: Apache-2.0

// Command analysis measures isthmusctl over a large cluster: 5,000 pods, 1,000
// policies, 100 nodes and 100 namespaces, in which policies tell nearly every pod from
// every other. It generates the manifests, builds the command, runs it, and prints one
// JSON object per figure: name, value, unit and, if set, the goal.
//
// Goals are for processor time in user mode and for memory; wall time depends on what
// else the machine does. It checks the exit status, but not
// the answers: tests do.
package main
