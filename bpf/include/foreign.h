/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "maps.h"
#include "mode.h"
#include "parse.h"

/* Interfaces that another CNI plugin made: veth pairs that the host routes to, and ports of a
 * bridge. On a bridge, frames between pods do not pass the host's IP stack. Each frame to a pod
 * must therefore be meant for that pod, and each frame that waits for a verdict after DNAT must
 * go to the host. */

/* The bits of the mark that other plugins own: 7 is the VPC CNI plugin's of AWS. 13 is portmap's,
 * whose rules masquerade each packet with it. Marks of packets from foreign interfaces do not use
 * them. */
#define MARK_OF_OTHERS 0x00002080

static __always_inline bool equal_mac(const __u8 *a, const __u8 *b)
{
	return *(__u32 *)a == *(__u32 *)b && *(__u16 *)(a + 4) == *(__u16 *)(b + 4);
}

/* Reports whether a frame on its way to a pod is for another station. A bridge floods such
 * frames until it learns the port of the station. The pod would discard them. */
static __always_inline bool for_another(const struct ethhdr *eth, const struct endpoint *e)
{
	return !(eth->h_dest[0] & 1) && !equal_mac(eth->h_dest, e->mac);
}

/* Returns the address of an endpoint for one IP version; zero if it has none. */
static __always_inline struct ip address_of(const struct endpoint *e, bool v6)
{
	struct ip own = {};

	if (v6)
		__builtin_memcpy(&own, e->ip6, 16);
	else
		__builtin_memcpy(&own.word[3], e->ip4, 4);
	return own;
}

/* Reports whether the map of further addresses gives an address to a slot. Not inlined, so that
 * the verifier checks it once. */
__noinline int has_further(const struct ip *addr, int v6, __u32 slot)
{
	struct slot_index *found;
	struct ip a;

	if (!addr)
		return false;
	a = *addr; /* Linux 6.1 accepts map keys only from the stack */
	found = v6 ? bpf_map_lookup_elem(&locals6, &a) : bpf_map_lookup_elem(&locals4, &a.word[3]);
	return found && found->slot == slot;
}

/* Reports whether an address is a further one of a pod: one that its CNI plugin gave it besides
 * that of its endpoint. Ask after the comparison with the latter, so that most packets need no
 * lookup. On these nodes locals4 and locals6 hold nothing else, as they have no fast path. */
static __always_inline bool is_further(const struct endpoint *e, const struct ip *addr, bool v6)
{
	return foreign && has_further(addr, v6, e->slot);
}

/* Reports whether a packet to a pod has an address of that pod as its destination. Otherwise
 * policy of this pod would decide a flow of another one. Not inlined, so that the verifier
 * checks it once. */
__noinline int to_own_address(struct __sk_buff *skb, const struct packet *p)
{
	const struct endpoint *e = find_endpoint(skb->ifindex);
	struct ip own;

	if (!e || !p)
		return false;
	own = address_of(e, p->v6);
	return !unspecified(&own) && (same(&p->flow.dst, &own) || is_further(e, &p->flow.dst, p->v6));
}
