/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <bpf/bpf_core_read.h>
#include "packet.h"

/* Checksums that the kernel or a device computes when a packet leaves the node. The sender chooses where in the packet the
 * result goes, also with a packet socket (PACKET_VNET_HDR). A pod must not have it written into what policy decides on. */

#define CHECKSUM_PARTIAL 3

/* The fields that say where the result goes. CO-RE adjusts the offsets. */
struct sk_buff___checksum {
	unsigned char *head;
	unsigned char *data;
	__u8 ip_summed : 2;
	__u16 csum_start; /* from head */
	__u16 csum_offset;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* Reads a field of a packet. Before Linux 6.2 the context is the packet all the same, but only a helper may read it. */
#define READ(s, field)                                                     \
	({                                                                 \
		typeof((s)->field) value = 0;                              \
		if (bpf_cast_to_kern_ctx)                                  \
			value = (s)->field;                                \
		else                                                       \
			bpf_core_read(&value, sizeof(value), &(s)->field); \
		value;                                                     \
	})

/* Returns the offset in the frame to which the checksum will be written, or a negative number if it is complete. */
static __always_inline int checksum_place(struct __sk_buff *skb)
{
	struct sk_buff___checksum *s = bpf_cast_to_kern_ctx ? bpf_cast_to_kern_ctx(skb) : (void *)skb;
	__u64 summed = bpf_cast_to_kern_ctx ? BPF_CORE_READ_BITFIELD(s, ip_summed) : BPF_CORE_READ_BITFIELD_PROBED(s, ip_summed);
	int at;

	if (summed != CHECKSUM_PARTIAL)
		return -1;
	at = (int)READ(s, csum_start) + READ(s, csum_offset) - (int)((long)READ(s, data) - (long)READ(s, head));
	return at < 0 ? 0 : at;
}

/* Reports whether the checksum of a packet of a pod will be written into headers that policy decides on. headers is their
 * length up to the transport header. The kernel computes those of ICMP and of fragments itself.
 * Not inlined, because the stack is small. */
__noinline int checksum_in_headers(struct __sk_buff *skb, const struct packet *p, int headers)
{
	int at = checksum_place(skb), first = (int)sizeof(struct ethhdr) + headers;

	if (at < 0)
		return false;
	if (!p || p->fragment)
		return true;
	switch (p->flow.protocol) {
	case IPPROTO_TCP:
		first += 16;
		break;
	case IPPROTO_UDP:
		first += 6;
		break;
	case IPPROTO_SCTP:
		first += 8;
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return true;
	}
	return at < first;
}
