/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "new_flow.h"

/* Flows between two pods of this node. Their packets go from one interface directly into the
 * other. */

/* Handles a packet of a direct flow whose receiving end changed. That end has a new epoch or no
 * role yet, or its address moved to another pod or to none. */
__noinline enum outcome revalidate_peer(struct __sk_buff *skb, struct pod_ctx *peer, const struct packet *p, struct conn *c, __u32 end)
{
	bool side = SIDE_OF(end);
	enum outcome act;

	if (!peer || !p || !c)
		return ACT_DENIED;
	if (!find_local_pod(&p->flow.dst, peer, p->v6)) {
		conn_leave(c, end, CONN_DIRECT | CONN_REMOTE);
		return ACT_PASS;
	}
	if (!conn_hold(c, end))
		return ACT_UNKNOWN;
	OF_END(c->place, side) = peer->index | PLACE_IS_SLOT;
	conn_release(c);
	act = authorise_packet(skb, peer, p, c, side);
	if (act > ACT_PASS) { /* the policy of the peer has revoked the flow */
		drop(skb, peer, p, act);
		return ACT_DENIED;
	}
	return act ? act : ACT_LOCAL;
}

/* Decides whether the pod at the end of a direct flow may receive this packet. */
static __always_inline enum outcome authorise_peer(struct __sk_buff *skb, struct pod_ctx *peer, const struct packet *p,
						   struct conn *c, bool side)
{
	struct approval now = approval_of(c, side);

	peer->index = OF_END(c->place, side) ^ PLACE_IS_SLOT;
	if (read_slot(peer) && now.epoch == peer->slot.epoch && holds(now) &&
	    (p->kind != PACKET_OPENS || (now.authorised & ROLE_ACCEPTED)))
		return ACT_LOCAL;
	return revalidate_peer(skb, peer, p, c, END_IN(&p->at, side));
}

/* Reports whether an ICMP error must take the fast path to the pod at one end of a flow, as the
 * packets of the flow do. kind is CONN_DIRECT or CONN_REMOTE. The host stack does not know such
 * flows. */
static __always_inline bool error_uses_fast_path(const struct packet *p, const struct conn *c, struct pod_ctx *peer, bool side,
						 enum conn_flag kind)
{
	struct approval now = approval_of(c, side);

	peer->index = OF_END(c->place, side) ^ PLACE_IS_SLOT;
	return (c->flow_flags & kind) && same(&p->flow.dst, &p->quoted.src) && holds(now) && read_slot(peer) &&
		now.epoch == peer->slot.epoch;
}

/* Redirects a packet into the interface of a pod of this node, as if the host had sent it. The
 * hop limit does not change, because there is no router in between. The program writes the
 * header in place. That is safe: the kernel unshares the header before it runs a program that
 * contains such a write. */
static __always_inline int deliver(struct __sk_buff *skb, const struct pod_ctx *peer, const struct packet *p)
{
	struct attachment *to = bpf_map_lookup_elem(&attachments, &peer->index);
	__u32 *eth = (void *)(long)skb->data;

	skb->mark = 0;
	if (!to || (void *)(eth + 3) > (void *)(long)skb->data_end)
		return drop(skb, peer, p, DROP_NO_ENDPOINT);
	__builtin_memcpy(eth, to, 2 * ETH_ALEN);
	return bpf_redirect_peer(to->ifindex, 0);
}
