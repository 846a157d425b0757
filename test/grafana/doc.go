// SPDX-License-Identifier: Apache-2.0

// Package grafana checks the dashboard of the chart against Grafana's schema, as the types of its Foundation SDK hold it. It is a
// separate module, so that the SDK stays out of the product.
//
// It does not run Grafana. Expressions and places of panels are checked by test/monitoring.
package grafana
