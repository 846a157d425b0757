/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "local_delivery.h"

/* ICMP errors. An error passes if it quotes a packet of a flow that policy allows now. The pod
 * must have sent or received that packet, and the error must go to its sender. It may come from
 * any router, but not from a pod that is no end of the flow. Any other error is decided as an
 * ordinary packet; but not one of a pod that connection tracking would translate. */

/* The rate of ICMP errors for each pod and direction. The units are those of the event budgets:
 * each jiffy adds error_rate units, an error costs event_cost, an idle pod has error_window. */
const volatile __u32 error_rate;
const volatile __u32 error_window;

struct error_budget {
	__u64 paid[2]; /* by direction */
};

/* The programs write it. If two CPUs write at once, one payment is lost. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct error_budget);
} error_budgets SEC(".maps");

/* Takes one ICMP error from the budget of a pod. Returns false if the budget is used up. */
__noinline int take_error_budget(const struct pod_ctx *l)
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
	if (ahead > error_window) /* the pod was idle for long */
		ahead = 0;
	if (ahead + event_cost > error_window)
		return false;
	*paid = now + ahead + event_cost;
	return true;
}

/* Reports whether an ICMP error belongs to a flow that policy allows the pod now. c is the
 * flow, end that of the pod. */
static __always_inline bool error_is_allowed(const struct pod_ctx *l, const struct packet *p, struct conn *c, __u32 end)
{
	struct approval now = approval_of(c, SIDE_OF(end));

	if (!(now.authorised & (ROLE_OPENED | ROLE_ACCEPTED)))
		return false;
	if (now.epoch == l->slot.epoch)
		return holds(now);
	/* The quoted packet went in the opposite direction. */
	return revalidate(l, &p->quoted, c, end, EVAL(p->v6, !l->from_pod, 0)) == ACT_PASS;
}

/* Returns the flow that an ICMP error quotes, or NULL. end becomes the end that sent the quoted
 * packet. */
static __noinline struct conn *find_quoted(const struct packet *p, __u32 *end)
{
	struct conn_place at = {};
	struct conn *c;

	conn_place(&p->quoted, &at, p->v6);
	c = conn_find_rare(&at, p->quoted.protocol, bpf_jiffies64(), p->v6);
	*end = END_IN(&at, at.src);
	return c;
}

/* Reports whether an address is that of a known pod. Other addresses in the pod ranges may belong to
 * routers: the gateways of other CNI plugins. */
__noinline int is_known_pod(const struct ip *addr, int v6)
{
	struct peer_class *found;
	struct ip a;

	if (!addr)
		return false;
	a = *addr; /* Linux 6.1 accepts map keys only from the stack */
	found = v6 ? bpf_map_lookup_elem(&peers6, &a) : bpf_map_lookup_elem(&peers4, &a.word[3]);
	return found && (found->class & PEER_POD);
}

/* Reports whether an ICMP error may belong to the flow that it quotes. It goes to the sender of the
 * quoted packet. A pod quotes only packets that it received. */
static __always_inline bool may_quote(const struct packet *p, bool from_pod)
{
	if (!p->quoted.protocol || (p->v6 && is_extension(p->quoted.protocol)) || !same(&p->flow.dst, &p->quoted.src))
		return false;
	return same(&p->flow.src, &p->quoted.dst) || !(from_pod || is_known_pod(&p->flow.src, p->v6));
}

/* Makes the sender of a packet unknown: any host may have made this one send it. */
static __always_inline void forget_sender(struct __sk_buff *skb, struct pod_ctx *l)
{
	struct end unknown = {};

	l->host = false;
	l->masqueraded = true;
	store_sender(skb, &unknown);
}

/* Decides an ICMP error and its path. For ACT_LOCAL, peer becomes the pod at the other end. */
__noinline enum outcome track_error(struct __sk_buff *skb, struct pod_ctx *l, const struct packet *p, struct pod_ctx *peer)
{
	enum outcome act = ACT_PASS;
	struct conn *c = NULL;
	__u32 end = 0; /* that sent the quoted packet */

	if (!l || !p || !peer || !read_slot(l))
		return ACT_DENIED;
	if (may_quote(p, l->from_pod))
		c = find_quoted(p, &end);
	if (c && error_is_allowed(l, p, c, l->from_pod ? end ^ 1 : end)) {
		if (l->from_pod && error_uses_fast_path(p, c, peer, SIDE_OF(end), CONN_DIRECT)) {
			act = ACT_LOCAL;
		} else if (l->from_pod && (c->flow_flags & CONN_REMOTE)) {
			l->device = OF_END(c->place, SIDE_OF(end));
			act = ACT_REMOTE;
		}
		if (conn_remains(c, end) && take_error_budget(l))
			return act;
	}
	if (l->from_pod && verdict_of(evaluate(skb, l, p)) == ALLOW && error_is_translated(skb, p))
		return DROP_REVOKED;
	/* The host sends some errors before a program has compared the source of the packet with its device: about options of IPv6, and
	 * about fragments that wait for the rest. A packet that waits for a verdict after DNAT has no flow yet. */
	if (l->host && !(has_record(&p->quoted, l->slot.epoch) && take_error_budget(l)))
		forget_sender(skb, l);
	return evaluate_new_role(skb, l, p) == ALLOW ? ACT_PASS : ACT_DENIED;
}
