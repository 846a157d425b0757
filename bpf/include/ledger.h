/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "conntrack.h"

/* Eviction from the flow table. Each entry has an index in the ledger. A clock hand moves over
 * the indexes. A new flow takes the first free index, or the first whose flow has expired. If
 * it finds none, it evicts the flow that was idle longest. That flow must belong to its own pod
 * or to a pod with more flows. So a pod with many flows cannot evict the flows of others. */

/* The number of indexes that a new flow examines, and the most if it finds no flow there that
 * it may evict. */
#define LEDGER_CHOICE 4
#define LEDGER_LOOKS 16

/* The sizes of the ledgers, set by the loader. */
const volatile __u32 ledger_size4;
const volatile __u32 ledger_size6;

static __always_inline void *ledger_entry(__u32 place, bool v6)
{
	return v6 ? bpf_map_lookup_elem(&ledger6, &place) : bpf_map_lookup_elem(&ledger4, &place);
}

static __always_inline __s32 *share_of(__u32 slot, bool v6)
{
	struct flow_share *s = bpf_map_lookup_elem(&flow_shares, &slot);

	return s ? &s->flows[v6] : NULL;
}

static __always_inline void count_share(__u32 slot, bool v6, __s32 more)
{
	__s32 *flows = share_of(slot, v6);

	if (flows)
		__sync_fetch_and_add(flows, more);
}

/* Removes the flow at an index from the table, if there is one. */
static __always_inline void ledger_clear(__u32 place, bool v6)
{
	void *entry = ledger_entry(place, v6); /* no other program writes it until the hand
					        * returns */
	struct conn *c;
	__u32 share;

	if (!entry)
		return;
	c = v6 ? bpf_map_lookup_elem(&conns6, entry) : bpf_map_lookup_elem(&conns4, entry);
	if (!c)
		return;
	share = c->share;
	if (!(v6 ? bpf_map_delete_elem(&conns6, entry) : bpf_map_delete_elem(&conns4, entry)))
		count_share(share, v6, -1);
}

/* Finds an index for a flow of the pod in a slot, and evicts its flow. Returns the index, or
 * -1. */
static __always_inline int ledger_take(__u32 slot, __u32 now, bool v6)
{
	__u32 zero = 0, size = v6 ? ledger_size6 : ledger_size4, idle, longest = 0;
	struct ledger_hand *hand = bpf_map_lookup_elem(&ledger_hands, &zero);
	__s32 *own = share_of(slot, v6), *other;
	int found = -1;

	if (!hand || !own || !size)
		return -1;
	for (int i = 0; i < LEDGER_CHOICE || (found < 0 && i < LEDGER_LOOKS); i++) {
		__u32 place = __sync_fetch_and_add(&hand->looked[v6], 1) % size;
		void *entry = ledger_entry(place, v6);
		struct conn *c;

		if (!entry)
			return -1;
		c = v6 ? bpf_map_lookup_elem(&conns6, entry) : bpf_map_lookup_elem(&conns4, entry);
		if (!c)
			return place;
		if (conn_expired(c, v6 ? ((struct conn_key6 *)entry)->protocol : ((struct conn_key4 *)entry)->protocol, now)) {
			found = place;
			break;
		}
		idle = now - c->seen;
		if (idle < longest || (c->share != slot && (!(other = share_of(c->share, v6)) || *other <= *own)))
			continue;
		longest = idle;
		found = place;
	}
	if (found >= 0)
		ledger_clear(found, v6);
	return found;
}

/* Stores the entry of a flow and counts it for the slot in c->share. Returns 0, or a negative
 * number if there is no room. If another CPU has stored the flow meanwhile, that entry stays. */
static __always_inline long conn_put(struct conn_place *at, struct conn *c, bool v6)
{
	void *entry;
	long err;
	int place;

	if (at->expired) { /* the flow has an index already */
		struct conn *was = v6 ? bpf_map_lookup_elem(&conns6, &at->key.v6) : bpf_map_lookup_elem(&conns4, &at->key.v4);

		if (was) {
			__u32 share = was->share;

			err = v6 ? bpf_map_update_elem(&conns6, &at->key.v6, c, BPF_EXIST) :
				   bpf_map_update_elem(&conns4, &at->key.v4, c, BPF_EXIST);
			if (!err && share != c->share) {
				count_share(share, v6, -1);
				count_share(c->share, v6, 1);
			}
			return err;
		}
	}
	place = ledger_take(c->share, c->seen, v6);
	if (place < 0)
		return -1;
	entry = ledger_entry(place, v6);
	if (!entry)
		return -1;
	if (v6)
		__builtin_memcpy(entry, &at->key.v6, sizeof(at->key.v6));
	else
		__builtin_memcpy(entry, &at->key.v4, sizeof(at->key.v4));
	err = v6 ? bpf_map_update_elem(&conns6, &at->key.v6, c, BPF_NOEXIST) :
		   bpf_map_update_elem(&conns4, &at->key.v4, c, BPF_NOEXIST);
	if (!err)
		count_share(c->share, v6, 1);
	return err == -17 /* EEXIST */ ? 0 : err;
}
