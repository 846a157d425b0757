// SPDX-License-Identifier: Apache-2.0

// Command observe measures what flow events cost the agent, and checks that none is lost in silence. Two nodes get the same
// packets at the same time, at a rate of 1,000 events a second. The agent of one reports them, that of the other runs with
// --flow-events=off. The differences of CPU time and of resident memory are the cost: without readers, with one, and
// with 16. Then a SYN flood meets 16 readers of different speed, some of which stall. Each must know of every event.
//
// It prints one JSON object per figure, with its goal, and fails if a goal is missed. It needs root, works in namespaces
// of its own and removes them.
//
// It does not measure the programs: test/bench/datapath does.
package main
