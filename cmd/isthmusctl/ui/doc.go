// SPDX-License-Identifier: Apache-2.0

// Package ui serves the pages of common/page to the browser of this machine: about a directory of manifests, or about a
// cluster while it changes. Denied flows come from a relay or from the agent of this machine.
//
// It changes nothing, and other machines cannot reach it.
package ui
