/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "pod_policy.h"
#include "source.h"
#include "ledger.h"
#include "authorisation.h"
#include "fastpath.h"

/* How unknown flows open, at one end or at both ends. */

/* Finds the pod that has an address. Returns false if no pod of this node has it. */
static __always_inline bool find_local_pod(const struct ip *addr, struct pod_ctx *l, bool v6)
{
	struct ip a = *addr; /* Linux 6.1 accepts map keys only from the stack */
	struct slot_index *found = v6 ? bpf_map_lookup_elem(&locals6, &a) : bpf_map_lookup_elem(&locals4, &a.word[3]);

	if (!found)
		return false;
	l->index = found->slot;
	return read_slot(l);
}

/* Reports whether a packet of an unknown flow may open a fast-path flow. A packet from the
 * middle of a TCP connection may not: the host stack may know the connection and translate it. */
static __always_inline bool may_open_fast_path(const struct packet *p)
{
	return p->kind == PACKET_OPENS || (p->kind == PACKET_FLOW && p->flow.protocol == IPPROTO_UDP);
}

/* Stores the entry of a flow after a miss (p->at) and a verdict of open_flow or open_from_node.
 * act is that verdict; peer is the other end if act is ACT_LOCAL. If there is no room,
 * every packet of the flow is evaluated. Returns 0 or a negative number. */
__noinline int store_flow(struct __sk_buff *skb, const struct pod_ctx *l, const struct packet *p, const struct pod_ctx *peer, enum outcome act)
{
	bool direct = act == ACT_LOCAL, v6;
	struct conn_place at = {};
	__u32 here, there, flags, made;
	struct end client;
	struct conn *c;
	long err;
	bool end;

	if (!l || !p || !peer)
		return -1;
	v6 = p->v6;
	at = p->at; /* Linux 6.1 accepts map keys only from the stack */
	c = v6 ? conn_begin(&at, l->index, bpf_jiffies64(), &made, &err, true) : conn_begin(&at, l->index, bpf_jiffies64(), &made, &err, false);
	if (!c) {
		if (err)
			count(skb, COUNT_UNTRACKED);
		return err;
	}
	end = l->from_pod ? at.src : !at.src;
	flags = direct ? CONN_DIRECT : (act == ACT_REMOTE ? CONN_REMOTE : (l->outside ? CONN_OUTSIDE : 0));
	here = flags & (CONN_DIRECT | CONN_REMOTE) ? l->index | PLACE_IS_SLOT : 0;
	there = direct ? peer->index | PLACE_IS_SLOT : l->device;
	c->end[0] = approval(end && !direct ? 0 : (end ? ROLE_ACCEPTED : role_of(l)), end ? peer->slot.epoch : l->slot.epoch);
	c->end[1] = approval(!end && !direct ? 0 : (!end ? ROLE_ACCEPTED : role_of(l)), !end ? peer->slot.epoch : l->slot.epoch);
	c->place[0] = end ? there : here;
	c->place[1] = end ? here : there;
	if (l->masqueraded) {
		load_sender(skb, &client);
		flags |= CONN_MASQUERADED;
		__builtin_memcpy(c->client, &client.addr, sizeof(c->client));
		c->client_port = client.port;
	}
	c->flow_flags = flags;
	c->sent[0] = !at.src;
	c->sent[1] = at.src;
	if (v6)
		conn_publish(&at, c, made, true);
	else
		conn_publish(&at, c, made, false);
	return 0;
}

/* Decides an unknown flow, for both ends if both are pods of this node. For a packet to a pod,
 * find_source has found the real source. */
__noinline enum outcome open_flow(struct __sk_buff *skb, struct pod_ctx *l, const struct packet *p, struct pod_ctx *peer)
{
	enum outcome act = ACT_PASS;

	if (!l || !p || !peer)
		return ACT_DENIED;
	if (l->from_pod && !may_be_translated(p) && is_broadcast(&p->flow.dst, p->v6)) /* the hooks see all others */
		return DROP_NEIGHBOUR;
	if (evaluate_new_role(skb, l, p) == DENY)
		return ACT_DENIED;
	if (l->from_pod && may_open_fast_path(p) && may_use_fast_path(l)) {
		if (find_local_pod(&p->flow.dst, peer, p->v6))
			act = ACT_LOCAL;
		else if (may_open_remote(skb, p, &p->flow.dst, skb->ifindex, &l->device))
			act = ACT_REMOTE;
	}
	if (act == ACT_LOCAL && evaluate_new_role(skb, peer, p) == DENY)
		return ACT_DENIED;
	l->outside = act == ACT_PASS && !l->peer_is_pod && !(class_of_address(l->from_pod ? &p->flow.dst : &p->flow.src, p->v6) & PEER_POD);
	return act;
}

/* Decides an unknown flow that arrives by a device from another node. Returns ACT_REMOTE if it
 * is a flow between pods that may use the fast path, ACT_DENIED if policy denies it, otherwise
 * ACT_PASS. */
__noinline enum outcome open_from_node(struct __sk_buff *skb, struct pod_ctx *pod, const struct packet *p)
{
	struct attachment *own;
	__u32 index;

	if (!pod || !p || !may_open_fast_path(p) || !find_local_pod(&p->flow.dst, pod, p->v6))
		return ACT_PASS;
	index = pod->index; /* Linux 6.1 accepts map keys only from the stack */
	own = bpf_map_lookup_elem(&attachments, &index);
	if (!own || !receivable(skb, pod, p->v6) || !may_open_remote(skb, p, &p->flow.src, own->ifindex, &pod->device) || pod->device != skb->ifindex)
		return ACT_PASS;
	return evaluate_new_role(skb, pod, p) == DENY ? ACT_DENIED : ACT_REMOTE;
}
