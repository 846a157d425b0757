/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "source.h"
#include "pod_policy.h"
#include "post_dnat.h"

/* The roles of the pod at one end of a flow: what policy authorised, under which epoch. Here
 * they are set, revalidated and revoked. */

/* Reports whether the packets of a pod may use the fast path. The fast path also bypasses the
 * qdiscs that limit the bandwidth of some pods. */
static __always_inline bool may_use_fast_path(const struct pod_ctx *l)
{
	__u32 index = l->index; /* Linux 6.1 accepts map keys only from the stack */
	struct attachment *own = bpf_map_lookup_elem(&attachments, &index);

	return own && own->ifindex;
}

/* Revalidates the roles of a pod in a flow after the epoch of its slot changed. Each role is
 * evaluated as it was when the flow opened. end is that of the pod (END_IN); flags holds only
 * the family and the sender. */
__noinline enum outcome revalidate(const struct pod_ctx *l, const struct flow *f, struct conn *c, __u32 end, int flags)
{
	bool side = SIDE_OF(end);
	__u8 had, kept = 0;

	if (!l || !f || !c)
		return DROP_REVOKED;
	if (!conn_hold(c, end))
		return ACT_UNKNOWN;
	had = approval_of(c, side).authorised & ~ROLE_REVOKED;
	if ((had & ROLE_OPENED) && verdict_of(reevaluate(l, f, c, ROLE_OPENED, flags)))
		kept |= ROLE_OPENED;
	if ((had & ROLE_ACCEPTED) && verdict_of(reevaluate(l, f, c, had & (ROLE_ACCEPTED | ROLE_OF_HOST), flags)))
		kept |= had & (ROLE_ACCEPTED | ROLE_OF_HOST);
	if (!may_use_fast_path(l)) /* the pod that had this address before had no bandwidth limit */
		clear_flags(c, CONN_DIRECT | CONN_REMOTE);
	/* Without a role the flow stays in the table. Otherwise packets that are still on their
	 * way would open a new flow. */
	approve(c, side, kept ? kept : had | ROLE_REVOKED, l->slot.epoch);
	conn_release(c);
	return kept ? ACT_PASS : DROP_REVOKED;
}

/* Authorises a new role in a known flow: the pod opens it, or another end opens it to the pod. */
__noinline enum outcome authorise(struct __sk_buff *skb, const struct pod_ctx *l, const struct packet *p, struct conn *c, __u32 end)
{
	bool side = SIDE_OF(end);
	struct approval had;
	__u8 role;

	if (!l || !p || !c || evaluate_new_role(skb, l, p) == DENY)
		return ACT_DENIED;
	if (!conn_hold(c, end))
		return ACT_UNKNOWN;
	role = role_of(l);
	had = approval_of(c, side);
	if (had.epoch == l->slot.epoch && !(had.authorised & ROLE_REVOKED))
		role |= l->from_pod ? had.authorised : had.authorised & ROLE_OPENED;
	if (!may_use_fast_path(l))
		clear_flags(c, CONN_DIRECT | CONN_REMOTE);
	approve(c, side, role, l->slot.epoch);
	conn_release(c);
	return ACT_PASS;
}

/* Decides whether the pod at one end of a known flow may send or receive this packet. */
static __always_inline enum outcome authorise_packet(struct __sk_buff *skb, const struct pod_ctx *l, const struct packet *p,
						     struct conn *c, bool side)
{
	struct approval now = approval_of(c, side);
	bool stale = now.epoch != l->slot.epoch;

	if (p->kind == PACKET_OPENS) {
		/* A pod that accepted a flow may not open its reverse. */
		if (!(now.authorised & (l->from_pod ? ROLE_OPENED : ROLE_ACCEPTED)) || (now.authorised & ROLE_REVOKED) || stale)
			return authorise(skb, l, p, c, END_IN(&p->at, side));
		return ACT_PASS;
	}
	if (!now.authorised)
		return authorise(skb, l, p, c, END_IN(&p->at, side));
	if (stale)
		return revalidate(l, &p->flow, c, END_IN(&p->at, side), EVAL(p->v6, l->from_pod, 0));
	return now.authorised & ROLE_REVOKED ? DROP_REVOKED : ACT_PASS;
}

/* Reports whether a packet of a known flow must wait for a verdict after DNAT. This applies to
 * packets that the host stack may translate, except answers. */
static __always_inline bool needs_post_dnat(const struct pod_ctx *l, const struct packet *p, const struct conn *c, bool side)
{
	struct approval now;

	if (!l->from_pod || !may_be_translated(p))
		return false;
	now = approval_of(c, side);
	if (now.authorised & ROLE_ACCEPTED)
		return false;
	if (c->flow_flags & CONN_TRANSLATED)
		return decides_alone || now.epoch != l->slot.epoch || p->flow.protocol != IPPROTO_TCP;
	return (now.epoch != l->slot.epoch || !now.authorised) && !(class_of_address(&p->flow.dst, p->v6) & PEER_POD);
}

/* Returns the path of a packet that passes by the role of the pod. Connection tracking may
 * forget a flow at any time. It then takes even an answer for a packet that opens a flow to a
 * Service, and chooses a backend. */
static __always_inline enum outcome path_of(const struct pod_ctx *l, const struct packet *p, const struct conn *c, bool side)
{
	if (!l->from_pod || !(c->flow_flags & CONN_OUTSIDE) || !may_be_translated(p) || !decides_alone)
		return ACT_PASS;
	return approval_of(c, side).authorised & ROLE_ACCEPTED ? ACT_ANSWER : ACT_POST_DNAT;
}

/* Updates a known flow when a packet arrives by another device than before, or from an address
 * that the node may use for another client at any time. find_source has found the real source.
 * Roles that policy authorised for one source do not apply to another. Returns ACT_PASS or
 * ACT_UNKNOWN. */
__noinline enum outcome update_source(struct __sk_buff *skb, const struct pod_ctx *l, struct conn *c, __u32 end)
{
	bool side = SIDE_OF(end);
	struct approval had;
	struct end client;
	struct ip was;
	bool other, known;

	if (!l || !c || !conn_hold(c, end))
		return ACT_UNKNOWN;
	had = approval_of(c, side);
	__builtin_memcpy(&was, c->client, sizeof(was));
	load_sender(skb, &client);
	known = c->flow_flags & CONN_MASQUERADED;
	other = l->masqueraded ? !known || !same(&was, &client.addr) || c->client_port != client.port : known;
	if (other || (!l->host && (had.authorised & ROLE_OF_HOST))) {
		approve(c, side, had.authorised & ROLE_REVOKED ? 0 : had.authorised & ROLE_OPENED, had.epoch);
		clear_flags(c, CONN_MASQUERADED);
		if (l->masqueraded) {
			__builtin_memcpy(c->client, &client.addr, sizeof(c->client));
			c->client_port = client.port;
			set_flags(c, CONN_MASQUERADED);
		}
	}
	if (!(c->flow_flags & CONN_DIRECT))
		OF_END(c->place, !side) = l->device;
	conn_release(c);
	return ACT_PASS;
}
