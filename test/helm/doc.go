// SPDX-License-Identifier: Apache-2.0

// Package helm checks the chart with Helm itself: lint, rendered objects against the committed
// manifests, values that must be refused, and every object against a real API server. Helm and
// its dependencies are in a separate module.
//
// It installs nothing.
package helm
