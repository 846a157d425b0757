// SPDX-License-Identifier: Apache-2.0

// Package traffic serves and opens flows in network namespaces, for tests. Servers
// echo or greet by TCP, UDP and SCTP; a Flow is a client's attempt. Stream and
// Connections keep traffic going while a test changes something, and count what was
// lost.
//
// It does not make namespaces, and does not know the network between them.
package traffic
