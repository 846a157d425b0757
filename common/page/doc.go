// SPDX-License-Identifier: Apache-2.0

// Package page serves web pages about a cluster: who reaches whom, why a flow is denied and which edit would allow it,
// denied flows, nodes, policies, and what nodes do not enforce exactly.
//
// The pages only read. They need no script, no cookie and nothing of another server. With a script new flows appear by
// themselves. A page shows a bounded part of a
// large cluster, and its address names that part, so that it can be bookmarked.
//
// A View computes what the pages show, without any request. A Handler checks requests and renders.
//
// It reads no cluster and no flows itself, and knows no operating system: the caller passes both as functions.
package page
