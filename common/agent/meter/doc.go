// SPDX-License-Identifier: Apache-2.0

// Package meter holds the metrics that an agent counts itself, and a Sampler of the counters of its
// data path.
//
// Every series of a counter exists from the start with the value 0. Otherwise increase() in Prometheus
// misses the first event, because the series begins with it.
//
// It does not serve HTTP, and does not know what a metric means for the node: docs/operate/alerts.md does.
package meter
