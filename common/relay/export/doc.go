// SPDX-License-Identifier: Apache-2.0

// Package export writes flows as lines of JSON, for collectors of logs. A line has the form of Hubble's export: a flow, the
// state of a node, or a number of lost flows. An Aggregator combines the flows between the same workloads. A File bounds
// the size of what is written.
//
// The Aggregator is pure. An Exporter does not know where flows come from, and it stores nothing else.
package export
