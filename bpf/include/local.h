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
	FATE_PENDING = -3, /* decided after the stack has translated it */
	FATE_REMOTE = -4, /* to the pod of another node at the other end */
	FATE_ANSWER = -5, /* may pass as an answer, unless the stack makes another packet of it */
};

/* A pod at one end of a packet's flow. */
struct local {
	__u32 index; /* of its slot */
	struct slot slot;
	bool from_pod; /* the packet is its own, or is for it */
	bool asked;    /* its table allows what the packet opens */
	/* Of a packet that is for the pod: who sends it; set by arrival. */
	bool host;         /* a process of this node */
	bool masqueraded;  /* a client, see load_sender, by an address of this node */
	bool outside;  /* the other end is no pod; set by open_flow */
	__u32 device;  /* that leads to the other end, if that is not on this node */
};

/* Who sends a packet of which the stack exchanged the source. It is kept with the
 * packet: the stack of a program is short. */
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

/* Counts a verdict or a drop, and emits an event. */
static __always_inline void tell(struct __sk_buff *skb, const struct local *l, const struct packet *p, __u32 id)
{
	__u32 flags = (l->from_pod ? EVENT_EGRESS : 0) | (p->v6 ? EVENT_V6 : 0);
	struct end client;

	count(skb, id);
	if (!l->masqueraded) {
		report(&p->flow, l->index, &l->slot, EVENT(id, flags, p->icmp), NULL);
		return;
	}
	load_sender(skb, &client);
	report(&p->flow, l->index, &l->slot, EVENT(id, flags | EVENT_MASQUERADED, p->icmp), &client);
}

/* Drops a packet and counts why. Of a frame that was not read as a packet, p is
 * NULL: the event has its kind only. */
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
