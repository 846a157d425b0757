// SPDX-License-Identifier: Apache-2.0

// Package netns makes network namespaces for tests and for clusters on one machine, connects them by veth pairs,
// and runs functions in them. Namespaces are bound to files, so that they have a path as the runtime gives one to
// CNI plugins, and Close removes them, also after a failure.
//
// It sends no packets; package traffic does.
package netns
