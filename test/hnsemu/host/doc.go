// SPDX-License-Identifier: Apache-2.0

// Package host is one emulated Windows node without its programs: HNS, a file that outlives it, and the switch
// that moves packets between the network namespaces that represent HCN namespaces (Linux, root). The namespace of
// the process is that of the node.
//
// Programs reach HNS through the DLLs (Service.Serve), or in the same process
// through Client. Tests use Control. It is not Windows, and runs no agent:
// test/cluster/winnode does.
package host
