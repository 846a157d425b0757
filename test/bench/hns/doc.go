// SPDX-License-Identifier: Apache-2.0

// Command hns counts the HNS calls of a Windows node for 1,000 changes of pods on
// other nodes. The cluster has 2,000 pods, of which 100 are on the node, and 500
// policies. It prints one JSON object per figure, as command
// bench does: how many ACL lists of endpoints and how many sets were written. For
// comparison it counts the lists that a node would write if it rewrote each
// changed list of addresses after every change.
//
// At the end it checks that HNS decides every cell like the State. The Fake
// answers immediately, so times do not include the work of Windows.
package main
