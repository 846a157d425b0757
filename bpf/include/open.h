/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "ask.h"
#include "roles.h"
#include "remote.h"

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

/* Makes the entry of a flow that was decided: for both ends if it is direct. way
 * is CONN_DIRECT, CONN_REMOTE or 0. */
__noinline int note_flow(struct __sk_buff *skb, const struct local *l, const struct packet *p, const struct local *peer, int way)
{
	bool direct = way == CONN_DIRECT;
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
	fresh.flags = way;
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
	int way = 0;

	if (!l || !p || !peer || judge(skb, l, p) == DENY)
		return FATE_DENIED;
	if (l->from_pod && starts_direct(p) && may_be_direct(l)) {
		if (find_local(&p->flow.dst, peer, p->v6))
			way = CONN_DIRECT;
		else if (starts_remote(skb, p, &p->flow.dst, skb->ifindex, &peer->index))
			way = CONN_REMOTE;
	}
	if (way == CONN_DIRECT && judge(skb, peer, p) == DENY)
		return FATE_DENIED;
	note_flow(skb, l, p, peer, way);
	return way == CONN_DIRECT ? FATE_DIRECT : way == CONN_REMOTE ? FATE_REMOTE : FATE_PASS;
}

/* Decides an unknown flow that came by a device from another node, if it is one
 * between pods that may pass the stack by. */
__noinline int open_arrived(struct __sk_buff *skb, struct local *pod, const struct packet *p)
{
	struct attachment *own;
	struct local peer = {};
	__u32 index;

	if (!pod || !p || !starts_direct(p) || !find_local(&p->flow.dst, pod, p->v6))
		return FATE_PASS;
	index = pod->index; /* as in read_slot */
	own = bpf_map_lookup_elem(&attachments, &index);
	if (!own || !receivable(skb, pod, p->v6) || !starts_remote(skb, p, &p->flow.src, own->ifindex, &peer.index) || peer.index != skb->ifindex)
		return FATE_PASS;
	if (judge(skb, pod, p) == DENY)
		return FATE_DENIED;
	note_flow(skb, pod, p, &peer, CONN_REMOTE);
	return FATE_DIRECT;
}
