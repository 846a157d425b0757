// SPDX-License-Identifier: Apache-2.0

// Package helm checks the chart with Helm itself: lint, what it renders beside
// the manifests that are committed, values that must be refused, and every
// object against a real API server. Helm and its dependencies are in a module of
// their own.
//
// It installs nothing.
package helm
