// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the alerts and the dashboard of the chart. promtool of
// Debian's package prometheus evaluates each alert on series that must and must not
// fire it. Prometheus scrapes the agents of a cluster on this machine, and answers
// each expression of the dashboard. Tests break clusters until each alert fires, and
// follow docs/operate/alerts.md until it ends.
//
// It does not test what a metric counts; the tests beside the metric do.
package monitoring
