/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "ask.h"
#include "translate.h"

/* What the pod at one end of a flow may do: the roles that it was granted, under
 * which epoch, and how they are granted, confirmed and taken back. */

/* Whether a pod's packets may pass the stack by, and the queues of interfaces
 * with it, which limit the bandwidth of some pods. */
static __always_inline bool may_be_direct(const struct local *l)
{
	__u32 index = l->index; /* as in read_slot */
	struct attachment *own = bpf_map_lookup_elem(&attachments, &index);

	return own && own->ifindex;
}

/* A flow that the pod had a role in under an older epoch: which roles does the
 * policy in force leave? Both ends of it are asked as they were at first. */
__noinline int confirm(const struct local *l, const struct packet *p, struct conn *c, int side)
{
	__u8 had, kept = 0;

	if (!l || !p || !c)
		return DROP_REVOKED;
	had = OF_END(c->side, side) & (SIDE_OPENED | SIDE_ACCEPTED);
	if ((had & SIDE_OPENED) && ask_opened(l, p, c))
		kept |= SIDE_OPENED;
	if ((had & SIDE_ACCEPTED) && ask(l, p, INGRESS))
		kept |= SIDE_ACCEPTED;
	/* Without a role left the flow stays known, so that packets still on
	 * their way are not taken for a new one. */
	OF_END(c->side, side) = kept ? kept : had | SIDE_REVOKED;
	if (!may_be_direct(l)) /* as the pod was that had the address before */
		c->flags &= ~(CONN_DIRECT | CONN_REMOTE);
	OF_END(c->epoch, side) = l->slot.epoch;
	return kept ? FATE_PASS : DROP_REVOKED;
}

/* A new role in a known flow: the pod opens it, or is reached. */
__noinline int grant(struct __sk_buff *skb, const struct local *l, const struct packet *p, struct conn *c, int side)
{
	__u8 role;

	if (!l || !p || !c || judge(skb, l, p) == DENY)
		return FATE_DENIED;
	role = role_of(l);
	if (OF_END(c->epoch, side) == l->slot.epoch && !(OF_END(c->side, side) & SIDE_REVOKED))
		role |= OF_END(c->side, side);
	OF_END(c->side, side) = role;
	if (!may_be_direct(l))
		c->flags &= ~(CONN_DIRECT | CONN_REMOTE);
	OF_END(c->epoch, side) = l->slot.epoch;
	return FATE_PASS;
}

/* May the pod at one end of a known flow send this packet, or receive it? */
static __always_inline int admit(struct __sk_buff *skb, const struct local *l, const struct packet *p,
				 struct conn *c, bool side)
{
	__u8 flags = OF_END(c->side, side);
	bool stale = OF_END(c->epoch, side) != l->slot.epoch;

	if (p->kind == PACKET_OPENS) {
		/* Being reached by a flow gives no right to open its reverse. */
		if (!(flags & role_of(l)) || (flags & SIDE_REVOKED) || stale)
			return grant(skb, l, p, c, side);
		return FATE_PASS;
	}
	if (!flags)
		return grant(skb, l, p, c, side);
	if (stale)
		return confirm(l, p, c, side);
	return flags & SIDE_REVOKED ? DROP_REVOKED : FATE_PASS;
}

/* Whether a packet of a pod's known flow is decided behind the translation. A
 * TCP connection keeps its backend, so that one verdict per epoch will do; of
 * other flows every packet may get another. */
static __always_inline bool pends(const struct local *l, const struct packet *p, const struct conn *c, bool side)
{
	__u8 flags = OF_END(c->side, side);
	bool stale = OF_END(c->epoch, side) != l->slot.epoch;

	if (!l->from_pod || (flags & SIDE_ACCEPTED) || !translatable(p))
		return false;
	if (c->flags & CONN_TRANSLATED)
		return stale || p->flow.protocol != IPPROTO_TCP;
	return (stale || !flags) && !(class_of_address(&p->flow.dst, p->v6) & PEER_POD);
}
