// SPDX-License-Identifier: Apache-2.0

// Command agnhost takes the place of Kubernetes' agnhost in images of a kernel without SCTP. It answers and sends the
// first packets of SCTP by raw sockets, for "agnhost porter" and "agnhost connect --protocol=sctp". These are the
// packets that policy decides about. It leaves everything else to Kubernetes' program, /agnhost-kubernetes.
//
// It opens no associations and transfers no data.
package main
