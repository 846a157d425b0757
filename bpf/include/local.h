/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/pkt_cls.h>
#include <stdbool.h>
#include "maps.h"
#include "parse.h"
#include "events.h"

/* What becomes of a packet: 0 or less, or the reason to drop it. */
enum fate {
	FATE_PASS = 0,
	FATE_DENIED = -1, /* dropped, and counted */
	FATE_DIRECT = -2, /* into the interface of the pod at the other end */
	FATE_PENDING = -3, /* decided behind the stack's translation */
	FATE_REMOTE = -4, /* to the pod of another node at the other end */
};

/* A pod at one end of a packet's flow. */
struct local {
	__u32 index; /* of its slot */
	struct slot slot;
	bool from_pod; /* the packet is its own, or is for it */
	bool asked;    /* its table allows what the packet opens */
};

/* Counts a verdict or a drop, and tells of it. */
static __always_inline void tell(struct __sk_buff *skb, const struct local *l, const struct packet *p, __u32 id)
{
	count(skb, id);
	report(&p->flow, l->index, &l->slot, EVENT(id, (l->from_pod ? EVENT_EGRESS : 0) | (p->v6 ? EVENT_V6 : 0), p->icmp), NULL);
}

/* Drops and tells why. Of a frame that was not read as a packet, p is NULL, no more
 * is told than its kind. */
__noinline int drop(struct __sk_buff *skb, const struct local *l, const struct packet *p, __u32 reason)
{
	if (!l)
		return TC_ACT_SHOT;
	if (p) {
		tell(skb, l, p, reason);
	} else {
		count(skb, reason);
		report(NULL, l->index, NULL, EVENT(reason, l->from_pod ? EVENT_EGRESS : 0, bpf_ntohs(skb->protocol)), NULL);
	}
	return TC_ACT_SHOT;
}

/* Whether there is such a slot. */
static __always_inline bool read_slot(struct local *l)
{
	__u32 index = l->index; /* on the stack, as Linux 6.1 wants keys */
	volatile __u64 *slot = bpf_map_lookup_elem(&slots, &index);

	if (slot)
		*(__u64 *)&l->slot = *slot;
	return slot;
}
