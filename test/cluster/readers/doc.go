// SPDX-License-Identifier: Apache-2.0

// Package readers follows the flow events of an agent by many clients at once, over both interfaces: Hubble's and that of
// isthmusctl. Some clients are slow, some stall. Each counts the events that it received, and those that its stream
// reported as missing. Emitted counts what the data path decided, by counters that no client influences.
//
// It makes no traffic: test/traffic does.
package readers
