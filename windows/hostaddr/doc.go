// SPDX-License-Identifier: Apache-2.0

// Package hostaddr follows the addresses of a host while its interfaces change. Programs of the host, such as a
// kubelet that probes pods, may send from any of them.
//
// It reads them periodically. A new address counts at once. A lost one counts until a grace time has passed, because
// adapters lose their addresses for seconds when HNS makes a network. After a failed read the known ones count.
//
// It calls no system: the caller gives it the function that reads. It writes no ACLs.
package hostaddr
