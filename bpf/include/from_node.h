/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "local_delivery.h"
#include "icmp_error.h"
#include "fastpath.h"
#include "parse_skb.h"

/* Packets from other nodes, at the devices that lead there. Packets that belong to no fast-path
 * flow continue unchanged through the host stack, and to_pod decides them. */

/* Decides an ICMP error that another node, or a router on the way there, sent about a fast-path
 * flow. The host stack does not know that flow. If the pod has used its budget, to_pod and the
 * policy of the pod decide. */
__noinline enum outcome track_error_from_node(struct __sk_buff *skb, const struct packet *p, struct pod_ctx *pod)
{
	struct conn_place at = {};
	struct conn *c;

	if (!p || !pod || p->kind != PACKET_ERROR || !may_quote(p, false))
		return ACT_PASS;
	conn_place(&p->quoted, &at, p->v6);
	c = conn_find_rare(&at, p->quoted.protocol, bpf_jiffies64(), p->v6);
	return c && error_uses_fast_path(p, c, pod, at.src, CONN_REMOTE) && conn_remains(c, END_IN(&at, 0)) && receivable(skb, pod, p->v6) && take_error_budget(pod) ? ACT_LOCAL : ACT_PASS;
}

/* Notes the device by which the packets of an end arrive now. Returns 0. */
__noinline int move_source(struct conn *c, __u32 end, __u32 device)
{
	if (c && conn_hold(c, end)) {
		OF_END(c->place, SIDE_OF(end)) = device;
		conn_release(c);
	}
	return 0;
}

/* Decides a packet between two pods, of which the receiving one is on this node. */
static __always_inline enum outcome track_from_node(struct __sk_buff *skb, struct packet *p, struct pod_ctx *pod, bool v6)
{
	struct conn_place *at = &p->at;
	__u32 now = bpf_jiffies64();
	struct conn *c;
	enum outcome act;

	conn_place(&p->flow, at, v6);
	c = conn_find(at, p->flow.protocol, now, v6);
	if (!c) {
		act = open_from_node(skb, pod, p);
		if (act == ACT_REMOTE) {
			store_flow(skb, pod, p, pod, ACT_REMOTE);
			act = ACT_LOCAL;
		}
		return act;
	}
	/* An end with roles is the pod on this node, so no other node may send from it. */
	if (!(c->flow_flags & CONN_REMOTE) || approval_of(c, at->src).authorised || !leads_to(skb->ifindex, OF_END(c->place, at->src), &p->flow.src, v6))
		return ACT_PASS;
	pod->index = OF_END(c->place, !at->src) ^ PLACE_IS_SLOT;
	if (!receivable(skb, pod, v6))
		return ACT_PASS;
	if (OF_END(c->place, at->src) != skb->ifindex)
		move_source(c, END_IN(at, at->src), skb->ifindex);
	act = authorise_peer(skb, pod, p, c, !at->src);
	if (!conn_remains(c, END_IN(at, 0)) || act == ACT_UNKNOWN)
		return ACT_PASS; /* to_pod decides the packet as one of an unknown flow */
	if (act == ACT_LOCAL)
		conn_seen(c, p, at->src, false, now);
	return act;
}

static __always_inline int police_from_node(struct __sk_buff *skb, bool v6)
{
	void *at = (void *)(long)skb->data + sizeof(struct ethhdr), *end = (void *)(long)skb->data_end;
	struct packet p = { .v6 = v6 };
	struct pod_ctx pod = { .index = NO_SLOT };
	enum outcome act;

	if (parse_plain(at, end, &p, v6))
		act = track_from_node(skb, &p, &pod, v6);
	else if (plain_icmp(at, end, v6) && !parse_any(skb, &p, v6))
		act = track_error_from_node(skb, &p, &pod);
	else
		return TC_ACT_UNSPEC;
	if (act == ACT_DENIED)
		return TC_ACT_SHOT;
	if (act != ACT_LOCAL)
		return TC_ACT_UNSPEC;
	if (!decrement_hop_limit(skb, v6))
		return TC_ACT_SHOT;
	return deliver(skb, &pod, &p);
}
