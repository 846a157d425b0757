/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "local.h"
#include "conntrack.h"
#include "verdict.h"

/* What is done for few packets is in functions that the verifier looks at once, by
 * themselves, and not wherever they are called. It takes their pointers to be
 * NULL if they are not compared. */

/* The two questions of policy, for all but the packets that are most of the work. */
__noinline int class_of_address(const struct ip *addr, int v6)
{
	struct prefix6 key = {}; /* on the stack, as in read_slot */
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

__noinline int table_allows(__u32 table, __u32 dir, __u32 peer, __u32 protocol, __u32 port)
{
	return table_says(table, dir & 1, peer, protocol, port);
}

/* Asks the pod's table about an address and a port. Who notes the answer under an
 * older epoch than it is of will only ask again. */
__noinline int ask_about(const struct local *l, const struct ip *remote, const struct packet *p, int port, int dir)
{
	volatile struct slot *slot;
	__u32 index, stage;
	int verdict;

	if (!l || !remote || !p)
		return DENY;
	index = l->index; /* on the stack, as in read_slot */
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return DENY;
	for (int i = 0; i < VERDICT_TRIES; i++) {
		stage = stage_now();
		verdict = table_allows(slot->table, dir, class_of_address(remote, p->v6), p->flow.protocol, port);
		if (stage_now() == stage)
			return verdict;
	}
	return DENY;
}

/* Asks about the flow of a packet, as if it were new. */
static __always_inline int ask(const struct local *l, const struct packet *p, enum direction dir)
{
	return ask_about(l, l->from_pod ? &p->flow.dst : &p->flow.src, p,
			 l->from_pod == (dir == EGRESS) ? p->flow.dst_port : p->flow.src_port, dir);
}

/* Asks about a flow that the pod opened, where its packets really go. */
static __always_inline __u8 ask_opened(const struct local *l, const struct packet *p, const struct conn *c)
{
	const struct ip *own = l->from_pod ? &p->flow.src : &p->flow.dst;
	struct ip backend;

	if (!(c->flags & CONN_TRANSLATED))
		return ask(l, p, EGRESS);
	__builtin_memcpy(&backend, c->backend, sizeof(backend));
	if (same(own, &backend))
		return ALLOW;
	return ask_about(l, &backend, p, c->backend_port, EGRESS);
}

/* The role that a pod has in a flow which this packet opens. */
static __always_inline __u8 role_of(const struct local *l)
{
	return l->from_pod ? SIDE_OPENED : SIDE_ACCEPTED;
}

/* May the pod have that role? Counted as a verdict on a new flow. */
static __always_inline __u8 judge(struct __sk_buff *skb, const struct local *l, const struct packet *p)
{
	enum direction dir = l->from_pod ? EGRESS : INGRESS;
	__u8 verdict = l->asked ? ALLOW : ask(l, p, dir);

	tell(skb, l, p, dir * 2 + verdict);
	return verdict;
}
