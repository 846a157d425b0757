// SPDX-License-Identifier: Apache-2.0

// Package migrate holds the commands that move this node from the bridge of another CNI plugin to mode full,
// without restarting its pods, and back. On Windows they plan the takeover of an HNS network, and change nothing.
//
// It does not decide what to change: linux/takeover and windows/takeover plan that.
package migrate
