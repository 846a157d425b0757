// SPDX-License-Identifier: Apache-2.0

// Package mixed holds the test of clusters with nodes of both systems: two Linux nodes with the
// eBPF data path and two emulated Windows nodes, on overlay and on bridged networks. Under
// cases of test/corpus every pod and every node calls every pod by TCP and UDP, and each
// verdict is compared with the reference. So is the cause in the event of each denied flow, on
// the node that dropped it.
//
// Without -short it tries a part of the cases; ISTHMUS_MIXED=1 (make mixed) tries
// all that fit. With ISTHMUS_WINE=1 Windows nodes run the executables for Windows
// under Wine. It shows nothing of Windows itself.
package mixed
