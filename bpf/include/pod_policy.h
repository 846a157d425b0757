/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "pod_context.h"
#include "conntrack.h"
#include "policy.h"

/* Functions that run for few packets. They are not inlined, so that the verifier checks each
 * one once and not at every call. The verifier assumes that their pointers may be NULL, so they
 * compare them. */

/* The two lookups of policy for rare packets. The hot path uses the inlined class_of and
 * table_verdict. */
__noinline int class_of_address(const struct ip *addr, int v6)
{
	struct prefix6 key = {}; /* Linux 6.1 accepts map keys only from the stack */
	const struct ip *a = (const struct ip *)key.addr;
	struct peer_class *found;

	if (!addr)
		return 0;
	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	found = v6 ? bpf_map_lookup_elem(&peers6, a) : bpf_map_lookup_elem(&peers4, &a->word[3]);
	if (found)
		return found->class;
	if (v6) {
		key.bits = 128;
		found = bpf_map_lookup_elem(&prefixes6, &key);
	} else {
		key.bits = 32;
		__builtin_memcpy(key.addr, &addr->word[3], 4);
		found = bpf_map_lookup_elem(&prefixes4, &key);
	}
	return found ? found->class : 0;
}

/* Returns the decision of a table. */
__noinline int lookup_verdict(__u32 table, __u32 dir, __u32 peer, __u32 protocol, __u32 port)
{
	return table_verdict(table, dir & 1, peer, protocol, port);
}

/* The arguments of a policy lookup for a flow: the direction of policy, the family, and whether
 * the pod sends from src to dst. */
enum eval_flag {
	EVAL_EGRESS = EGRESS,
	EVAL_V6 = 2,
	EVAL_SENT = 4,
};

#define EVAL(v6, sent, dir) (((v6) ? EVAL_V6 : 0) | ((sent) ? EVAL_SENT : 0) | (dir))

/* Returns the decision of the pod's table on a remote address and a port, for the protocol of a
 * flow. A caller may store the verdict under an older epoch; the next packet then only
 * revalidates it. */
__noinline int evaluate_address(const struct pod_ctx *l, const struct ip *remote, const struct flow *f, int port, int flags)
{
	volatile struct slot *slot;
	__u32 index, generation;
	int decision;

	if (!l || !remote || !f)
		return DENY;
	index = l->index; /* Linux 6.1 accepts map keys only from the stack */
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return DENY;
	for (int i = 0; i < VERDICT_TRIES; i++) {
		generation = current_generation();
		decision = lookup_verdict(slot->table, flags & EVAL_EGRESS, class_of_address(remote, flags & EVAL_V6), f->protocol, port);
		if (current_generation() == generation)
			return decision;
	}
	return DENY;
}

static __always_inline const struct ip *remote_of(const struct flow *f, int flags)
{
	return flags & EVAL_SENT ? &f->dst : &f->src;
}

static __always_inline const struct ip *own_of(const struct flow *f, int flags)
{
	return flags & EVAL_SENT ? &f->src : &f->dst;
}

/* Returns the decision on a flow, as if it opened in the direction of the flags. */
static __always_inline int evaluate_flow(const struct pod_ctx *l, const struct flow *f, int flags)
{
	bool sent = flags & EVAL_SENT, egress = flags & EVAL_EGRESS;

	return evaluate_address(l, remote_of(f, flags), f, sent == egress ? f->dst_port : f->src_port, flags);
}

/* Allows the node of the pod, as soon as the pod has a table. */
static __always_inline int evaluate_host(const struct pod_ctx *l)
{
	return l->slot.table ? DECISION(ALLOW, CAUSE_NODE) : DECISION(DENY, CAUSE_PENDING + INGRESS);
}

/* Returns the decision on the flow that a packet opens. A pod always reaches itself. For a
 * masqueraded packet, the client is the remote address. */
static __always_inline int evaluate(struct __sk_buff *skb, const struct pod_ctx *l, const struct packet *p)
{
	struct end client;

	if (l->from_pod)
		return evaluate_flow(l, &p->flow, EVAL(p->v6, true, EGRESS));
	if (l->host)
		return evaluate_host(l);
	if (!l->masqueraded)
		return evaluate_flow(l, &p->flow, EVAL(p->v6, false, INGRESS));
	load_sender(skb, &client);
	return same(&client.addr, &p->flow.dst) ? DECISION(ALLOW, CAUSE_SELF + INGRESS) :
						  evaluate_address(l, &client.addr, &p->flow, p->flow.dst_port, EVAL(p->v6, false, INGRESS));
}

/* Returns the decision on a flow whose real remote address differs from its key: the backend of
 * a Service that the pod opened, or a masqueraded client. */
__noinline int evaluate_translated(const struct pod_ctx *l, const struct flow *f, const struct conn *c, int flags)
{
	bool egress = flags & EVAL_EGRESS;
	struct ip other;

	if (!l || !f || !c)
		return DENY;
	if (egress)
		__builtin_memcpy(&other, c->backend, sizeof(other));
	else
		__builtin_memcpy(&other, c->client, sizeof(other));
	if (same(own_of(f, flags), &other))
		return DECISION(ALLOW, CAUSE_SELF + (flags & EVAL_EGRESS));
	return evaluate_address(l, &other, f, egress ? c->backend_port : (flags & EVAL_SENT ? f->src_port : f->dst_port), flags);
}

/* Evaluates a role of a pod in a flow again, under the policy in force. Returns the decision. */
static __always_inline int reevaluate(const struct pod_ctx *l, const struct flow *f, const struct conn *c, __u8 role, int flags)
{
	bool opened = role & ROLE_OPENED;

	if (role & ROLE_OF_HOST)
		return evaluate_host(l);
	flags |= opened ? EGRESS : INGRESS;
	if (c->flow_flags & (opened ? CONN_TRANSLATED : CONN_MASQUERADED))
		return evaluate_translated(l, f, c, flags);
	return evaluate_flow(l, f, flags);
}

/* Returns the role that a pod gets in a flow which this packet opens. */
static __always_inline __u8 role_of(const struct pod_ctx *l)
{
	if (l->from_pod)
		return ROLE_OPENED;
	return l->host ? ROLE_ACCEPTED | ROLE_OF_HOST : ROLE_ACCEPTED;
}

/* Returns the verdict on a new role, and counts it as a verdict on a new flow. For a pod that is
 * observed, a denial is counted and reported, but the flow is allowed. */
static __always_inline __u8 evaluate_new_role(struct __sk_buff *skb, const struct pod_ctx *l, const struct packet *p)
{
	enum direction dir = l->from_pod ? EGRESS : INGRESS;
	__u32 decision = l->allowed ? DECISION(ALLOW, l->allowed) : evaluate(skb, l, p);
	__u8 verdict = verdict_of(decision);

	count_and_report(skb, l, p, WITH_CAUSE(dir * 2 + verdict, cause_of(decision)));
	if (observed(l->slot.table))
		verdict = ALLOW;
	return verdict;
}
