/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "ask.h"
#include "roles.h"

/* How unknown flows begin, at one end or at both. */

/* The pod that has an address, if it is on this node. */
static __always_inline bool find_local(const struct ip *addr, struct local *l, bool v6)
{
	struct ip a = *addr; /* as in read_slot */
	struct slot_index *found = v6 ? bpf_map_lookup_elem(&locals6, &a) : bpf_map_lookup_elem(&locals4, &a.word[3]);

	if (!found)
		return false;
	l->index = found->slot;
	return read_slot(l);
}

/* Whether a packet of an unknown flow may start one that passes the stack by.
 * The stack may know what looks like the middle of a TCP connection, and may
 * have translated it. */
static __always_inline bool starts_direct(const struct packet *p)
{
	return p->kind == PACKET_OPENS || (p->kind == PACKET_FLOW && p->flow.protocol == IPPROTO_UDP);
}

/* Makes the entry of a flow that was decided: for both ends if it is direct. */
__noinline int note_flow(struct __sk_buff *skb, const struct local *l, const struct packet *p, const struct local *peer, int direct)
{
	struct conn_place at = {};
	struct conn fresh = {};
	__u8 role, peer_role;
	__u32 epoch;
	bool end;

	if (!l || !p || !peer)
		return -1;
	conn_place(&p->flow, &at, p->v6);
	end = l->from_pod ? at.src : !at.src;
	role = role_of(l);
	peer_role = direct ? SIDE_ACCEPTED : 0;
	epoch = direct ? peer->slot.epoch : 0;
	/* Both ends are written: the verifier knows no variable stack offsets. */
	fresh.side[0] = end ? peer_role : role;
	fresh.side[1] = end ? role : peer_role;
	fresh.epoch[0] = end ? epoch : l->slot.epoch;
	fresh.epoch[1] = end ? l->slot.epoch : epoch;
	fresh.slot[0] = end ? peer->index : l->index;
	fresh.slot[1] = end ? l->index : peer->index;
	fresh.flags = direct ? CONN_DIRECT : 0;
	fresh.packets[0] = !at.src;
	fresh.packets[1] = at.src;
	fresh.bytes[0] = at.src ? 0 : skb->len;
	fresh.bytes[1] = at.src ? skb->len : 0;
	fresh.seen = bpf_jiffies64();
	conn_create(&at, &fresh, p->v6);
	return 0;
}

/* Decides an unknown flow, for both ends if both are pods of this node. */
__noinline int open_flow(struct __sk_buff *skb, const struct local *l, const struct packet *p, struct local *peer)
{
	bool direct;

	if (!l || !p || !peer || judge(skb, l, p) == DENY)
		return FATE_DENIED;
	direct = l->from_pod && starts_direct(p) && may_be_direct(l) && find_local(&p->flow.dst, peer, p->v6);
	if (direct && judge(skb, peer, p) == DENY)
		return FATE_DENIED;
	note_flow(skb, l, p, peer, direct);
	return direct ? FATE_DIRECT : FATE_PASS;
}
