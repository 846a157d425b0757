// SPDX-License-Identifier: Apache-2.0

// Command hns counts what pods that come and go cost a Windows node: 1,000
// changes on other nodes, in a cluster of 2,000 pods and 500 policies of which
// 100 pods are the node's own. It prints one JSON object per figure, as command
// bench does: how many ACL lists of endpoints and how many sets were written. For
// comparison it counts the lists that a node would write if it rewrote each
// changed list of addresses after every change.
//
// At the end it proves that HNS decides every cell as the State says. The Fake
// answers at once: times are the agent's own work, and nothing of Windows.
package main
