// SPDX-License-Identifier: Apache-2.0

// Package dataplanetest holds Fake, a dataplane.Backend in memory for tests, and Component, which records its calls.
// Fake rejects what a real backend rejects, executes Plan step by step, and outlives the agent that uses it, as a
// kernel does.
//
// A Fault fails, hangs or crashes it before any step. Dump returns its state as canonical text.
//
// The product does not import it. It forwards no packets: Decide returns the verdict of the State in force.
package dataplanetest
