/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "direct.h"

/* ICMP errors. One passes if it is about a flow that policy allows the pod now: it
 * quotes a packet of this flow that the pod sent or received, and goes where that
 * came from. Any other is a packet like others. */

/* Errors that each pod may send and receive, as events have it: units and window. */
const volatile __u32 error_rate;
const volatile __u32 error_window;

struct error_budget {
	__u64 paid[2]; /* by direction */
};

/* Written by the programs; processors that write at once lose a payment. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct error_budget);
} error_budgets SEC(".maps");

/* Takes an error out of the budget of a pod, if there is one in it. */
__noinline int error_due(const struct local *l)
{
	__u64 now = bpf_jiffies64() * error_rate, *paid, ahead;
	struct error_budget *b;
	__u32 index;

	if (!l)
		return false;
	index = l->index;
	b = bpf_map_lookup_elem(&error_budgets, &index);
	if (!b)
		return false;
	paid = l->from_pod ? &b->paid[1] : &b->paid[0];
	ahead = *paid - now;
	if (ahead > error_window) /* was quiet for long */
		ahead = 0;
	if (ahead + event_cost > error_window)
		return false;
	*paid = now + ahead + event_cost;
	return true;
}

/* Whether an error belongs to a flow of the pod: its own end of it, its address, and a
 * role under the policy in force. c is the flow, side the pod's end. */
static __always_inline bool may_quote(const struct local *l, const struct packet *p, struct conn *c, bool side)
{
	struct approval now = approval_of(c, side);

	if (!(now.roles & (ROLE_OPENED | ROLE_ACCEPTED)))
		return false;
	if (now.epoch == l->slot.epoch)
		return holds(now);
	/* The quoted packet went the other way. */
	return confirm(l, &p->quoted, c, side, QUESTION(p->v6, !l->from_pod, 0)) == FATE_PASS;
}

/* The flow that an error quotes, or NULL; src is the end that sent the quoted packet. */
static __noinline struct conn *find_quoted(const struct packet *p, bool *src)
{
	struct conn_place at = {};

	conn_place(&p->quoted, &at, p->v6);
	*src = at.src;
	return conn_find(&at, p->quoted.protocol, bpf_jiffies64(), p->v6);
}

/* Decides an ICMP error, and where it goes: the pod at the other end is peer if that is
 * FATE_DIRECT. */
__noinline int track_error(struct __sk_buff *skb, struct local *l, const struct packet *p, struct local *peer)
{
	struct conn *c = NULL;
	bool src = false;

	if (!l || !p || !peer || !read_slot(l))
		return FATE_DENIED;
	/* A pod quotes what it received, to who sent it, and is sent what it sent. */
	if (p->quoted.protocol && same(&p->flow.dst, &p->quoted.src) && (!l->from_pod || same(&p->flow.src, &p->quoted.dst)))
		c = find_quoted(p, &src);
	if (!c || !may_quote(l, p, c, l->from_pod ? !src : src) || !error_due(l))
		return judge(skb, l, p) == ALLOW ? FATE_PASS : FATE_DENIED;
	if (!l->from_pod)
		return FATE_PASS;
	if (error_is_direct(p, c, peer, src, CONN_DIRECT))
		return FATE_DIRECT;
	if (c->flow_flags & CONN_REMOTE) {
		l->device = OF_END(c->place, src);
		return FATE_REMOTE;
	}
	return FATE_PASS;
}
