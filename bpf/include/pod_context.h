/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/pkt_cls.h>
#include <stdbool.h>
#include "maps.h"
#include "parse.h"
#include "events.h"

/* Reports whether a packet continues, on any path. */
static __always_inline bool continues(enum outcome act)
{
	return act <= ACT_PASS && act != ACT_DENIED && act != ACT_UNKNOWN;
}

/* A packet from elsewhere whose device is not known. The kernel forgets it when it fragments an
 * IPv6 packet that it has reassembled. No device has this index. */
#define DEVICE_LOST 0x7fffffff

/* A pod at one end of a packet's flow. */
struct pod_ctx {
	__u32 index; /* of its slot */
	struct slot slot;
	__u16 allowed; /* the cause if its table already allowed the flow that the packet opens,
			* otherwise 0 */
	bool from_pod; /* whether the pod sends the packet; otherwise it receives it */
	/* Few packets change these bits, and the stack is small. */
	/* Whether the frame of a pod goes to the host, so that it will pass the hooks that decide after
	 * DNAT. */
	bool to_host : 1;
	/* The source of a packet to the pod; set by find_source. */
	bool host : 1;        /* a process of this node */
	bool masqueraded : 1; /* a client (see load_sender) that uses an address of this node */
	bool peer_is_pod : 1; /* the other end is a pod; set by evaluate_early, for new flows only */
	bool outside : 1;     /* the other end is not a pod; set by open_flow */
	/* The device that leads to the other end, if that is not on this node. For a packet to the
	 * pod, the one that it arrived by: 0 for the host itself, or DEVICE_LOST. */
	__u32 device;
};

/* Returns the real source of a packet whose source the host stack replaced. The program stores
 * it in skb->cb, because the BPF stack is small. */
static __always_inline void load_sender(struct __sk_buff *skb, struct end *sender)
{
	sender->addr.word[0] = skb->cb[0];
	sender->addr.word[1] = skb->cb[1];
	sender->addr.word[2] = skb->cb[2];
	sender->addr.word[3] = skb->cb[3];
	sender->port = skb->cb[4];
	sender->pad = 0;
}

static __always_inline void store_sender(struct __sk_buff *skb, const struct end *sender)
{
	skb->cb[0] = sender->addr.word[0];
	skb->cb[1] = sender->addr.word[1];
	skb->cb[2] = sender->addr.word[2];
	skb->cb[3] = sender->addr.word[3];
	skb->cb[4] = sender->port;
}

/* The counter of a verdict, and the number of its cause. */
#define WITH_CAUSE(id, cause) ((__u32)(id) | (__u32)(cause) << 8)

/* Counts a verdict or a drop, and emits an event. what is a counter, for verdicts WITH_CAUSE. */
static __always_inline void count_and_report(struct __sk_buff *skb, const struct pod_ctx *l, const struct packet *p, __u32 what)
{
	__u32 flags = (l->from_pod ? EVENT_EGRESS : 0) | (p->v6 ? EVENT_V6 : 0), id = what & 0xff;
	struct end client;

	if (id < DROP_NO_ENDPOINT)
		count_verdict(l->index, id, what >> 8);
	else
		count(skb, id);
	if (!l->masqueraded) {
		emit_event(&p->flow, l->index, &l->slot, EVENT(id, flags, p->icmp), NULL);
		return;
	}
	load_sender(skb, &client);
	emit_event(&p->flow, l->index, &l->slot, EVENT(id, flags | EVENT_MASQUERADED, p->icmp), &client);
}

/* Drops a packet and counts the reason, for verdicts WITH_CAUSE. p is NULL if the frame was not
 * parsed; the event then has only the EtherType. A packet of a pod that is observed passes. */
__noinline int drop(struct __sk_buff *skb, const struct pod_ctx *l, const struct packet *p, __u32 reason)
{
	if (!l)
		return TC_ACT_SHOT;
	if (p) {
		count_and_report(skb, l, p, reason);
	} else {
		count(skb, reason);
		emit_event(NULL, l->index, foreign ? &l->slot : NULL, EVENT(reason, l->from_pod ? EVENT_EGRESS : 0, bpf_ntohs(skb->protocol)), NULL);
	}
	return observed(l->slot.table) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* Reads table and epoch of the slot. Returns false if the slot does not exist. */
static __always_inline bool read_slot(struct pod_ctx *l)
{
	__u32 index = l->index; /* Linux 6.1 accepts map keys only from the stack */
	volatile __u64 *slot = bpf_map_lookup_elem(&slots, &index);

	if (slot)
		*(__u64 *)&l->slot = *slot;
	return slot;
}
