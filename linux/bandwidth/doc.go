// SPDX-License-Identifier: Apache-2.0

// Package bandwidth limits what pods receive and send, by token buckets of the kernel. The bucket for what a pod
// receives is a qdisc of its host end. The bucket for what it sends is on an ifb interface, to which a filter
// redirects the packets after the programs.
//
// Its objects belong to attachments and not to a State. The Backend calls it before a pair is up, so that no packet
// passes without a limit. It does not choose limits and does not create pairs: package link does.
package bandwidth
