/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "conntrack.h"
#include "ledger.h"
#include "post_dnat.h"

/* Flows of packets that DNAT may change: how a verdict on the backend is stored, and what becomes of
 * a flow on the fast path that has the addresses and ports after DNAT. */

/* No counter, because the flow is not new. */
#define NO_COUNTER -1

/* Revokes the role of the pod in a recorded flow, if the flow is known. Returns the counter to
 * use. These functions are global: the verifier checks each one once, and their stack frames do
 * not count against decide. */
__noinline int store_denied(const struct post_dnat_record *r, const struct slot *slot, int v6)
{
	struct conn_place at = {};
	struct approval had;
	struct conn *c;

	if (!r || !slot)
		return COUNT_EGRESS_DENY;
	conn_place(&r->flow, &at, v6);
	c = conn_find_any(&at, r->flow.protocol, bpf_jiffies64(), v6);
	if (!c)
		return COUNT_EGRESS_DENY;
	if (!conn_hold(c, END_IN(&at, 0)))
		return COUNT_EGRESS_DENY;
	had = approval_of(c, at.src);
	/* A pod that accepted the flow may still answer, but not open it. */
	if (had.authorised & ROLE_OPENED)
		approve(c, at.src, had.authorised | ROLE_REVOKED, slot->epoch);
	conn_release(c);
	if (!(had.authorised & ROLE_OPENED))
		return COUNT_EGRESS_DENY;
	return r->kind == PACKET_OPENS ? COUNT_EGRESS_DENY : DROP_REVOKED;
}

/* Stores an allowed flow that is not known. Returns 0, or a negative number if there is no
 * room. */
static __always_inline long store_new(struct conn_place *at, const struct post_dnat_record *r, const struct flow *to, __u32 epoch, __u32 now, bool v6)
{
	long err;
	__u32 made;
	struct conn *c = conn_begin(at, r->slot, now, &made, &err, v6);

	if (!c)
		return err;
	c->end[0] = approval(at->src ? 0 : ROLE_OPENED, epoch);
	c->end[1] = approval(at->src ? ROLE_OPENED : 0, epoch);
	c->flow_flags = CONN_TRANSLATED | CONN_OUTSIDE;
	c->backend_port = to->dst_port;
	__builtin_memcpy(c->backend, &to->dst, sizeof(c->backend));
	c->sent[0] = !at->src;
	c->sent[1] = at->src;
	conn_publish(at, c, made, v6);
	return 0;
}

/* Stores an allowed flow under the addresses that the pod uses, so that answers pass. to is the
 * flow after DNAT. Returns the counter to use, or NO_COUNTER. */
__noinline int store_allowed(const struct post_dnat_record *r, const struct flow *to, const struct slot *slot, __u32 len, int v6)
{
	struct packet p = {};
	struct conn_place *at = &p.at;
	struct conn *c;
	__u32 now = bpf_jiffies64();
	struct approval had;
	bool known;

	if (!r || !to || !slot)
		return NO_COUNTER;
	conn_place(&r->flow, at, v6);
	c = conn_find_any(at, r->flow.protocol, now, v6);
	if (!c || !conn_hold(c, END_IN(at, 0))) {
		if (v6 ? store_new(at, r, to, slot->epoch, now, true) : store_new(at, r, to, slot->epoch, now, false))
			count_bytes(len, COUNT_UNTRACKED);
		return COUNT_EGRESS_ALLOW;
	}
	had = approval_of(c, at->src);
	known = (had.authorised & ROLE_OPENED) && holds(had) && (c->flow_flags & CONN_TRANSLATED);
	clear_flags(c, CONN_DIRECT | CONN_REMOTE);
	set_flags(c, CONN_TRANSLATED | CONN_OUTSIDE);
	c->backend_port = to->dst_port;
	__builtin_memcpy(c->backend, &to->dst, sizeof(c->backend));
	if (had.epoch != slot->epoch || !holds(had))
		had.authorised = 0;
	approve(c, at->src, had.authorised | ROLE_OPENED, slot->epoch);
	p.kind = r->kind;
	conn_seen(c, &p, at->src, true, now);
	conn_release(c);
	return known ? NO_COUNTER : COUNT_EGRESS_ALLOW;
}

/* Reports whether a translated answer goes to the masqueraded client, whose address and port the
 * host stack restores. */
__noinline int answers_client(const struct post_dnat_record *r, const struct flow *to, int v6)
{
	struct conn_place at = {};
	struct conn *c;
	struct ip client;
	__u16 port;

	if (!r || !to)
		return false;
	conn_place(&r->flow, &at, v6);
	c = conn_find_any(&at, r->flow.protocol, bpf_jiffies64(), v6);
	if (!c || !(c->flow_flags & CONN_MASQUERADED))
		return false;
	__builtin_memcpy(&client, c->client, sizeof(client));
	port = c->client_port;
	return same(&client, &to->dst) && (!port || port == to->dst_port) && conn_remains(c, END_IN(&at, 0));
}

/* Moves a fast-path flow to the host stack if DNAT gives a new flow the same addresses and
 * ports. Otherwise the fast path would deliver the answers of the new flow. The old flow is
 * closed, or it is not TCP and can continue through the host stack, which tells both apart.
 * port_taken handles open TCP connections. Returns 0. */
__noinline int retire_fast_path(const struct flow *to, int v6)
{
	struct conn_place at = {};
	struct conn *c;

	if (!to)
		return 0;
	conn_place(to, &at, v6);
	c = conn_find_any(&at, to->protocol, bpf_jiffies64(), v6);
	if (c && (c->flow_flags & (CONN_DIRECT | CONN_REMOTE)) && (to->protocol != IPPROTO_TCP || c->state == CONN_CLOSING))
		conn_leave(c, END_IN(&at, 0), CONN_DIRECT | CONN_REMOTE);
	return 0;
}

/* Reports whether DNAT gives a new connection the addresses and ports of an established one on the
 * fast path, which connection tracking does not know. */
__noinline int port_taken(const struct post_dnat_record *r, const struct flow *to, int v6)
{
	struct conn_place at = {};
	struct conn *c;

	if (!r || !to || r->kind != PACKET_OPENS || to->protocol != IPPROTO_TCP)
		return false;
	conn_place(to, &at, v6);
	c = conn_find_rare(&at, IPPROTO_TCP, bpf_jiffies64(), v6);
	return c && (c->flow_flags & (CONN_DIRECT | CONN_REMOTE)) && c->state == CONN_ESTABLISHED;
}

/* Decides a packet whose ports are taken. The first one is dropped, and its flow marked. When the
 * client sends it again, from_pod makes the old connection known, and the host stack chooses another
 * source port after this hook. Returns whether to drop the packet. */
__noinline int must_retry(const struct post_dnat_record *r, int v6)
{
	struct conn_place at = {};
	struct conn *c;
	bool again;

	if (!r)
		return true;
	conn_place(&r->flow, &at, v6);
	c = conn_find_rare(&at, IPPROTO_TCP, bpf_jiffies64(), v6);
	if (!c || !conn_hold(c, END_IN(&at, 0)))
		return true;
	again = c->flow_flags & CONN_PORT_TAKEN;
	if (again)
		clear_flags(c, CONN_PORT_TAKEN);
	else
		set_flags(c, CONN_PORT_TAKEN);
	conn_release(c);
	return !again;
}
