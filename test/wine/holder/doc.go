// SPDX-License-Identifier: Apache-2.0

// Command holder makes the pipes and mutexes that its arguments name, as any user of a Windows host may do before the agent starts,
// and keeps them until its input ends. It writes a line once it has them.
//
// It does not connect to a pipe or take a mutex of others: a name that exists is an error.
package main
