/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "conntrack.h"

/* Eviction from the flow table. Each entry has an index in the ledger. A clock hand moves over
 * the indexes. A new flow takes the first free index, or the first whose flow has expired.
 * Otherwise it evicts a flow: the first that is still without an answer after ledger_spare, or
 * the one that was idle longest. That flow must belong to its own pod or to a pod with more
 * flows. So a pod with many flows cannot evict the flows of others. */

/* The number of indexes that a new flow examines, and the most if it finds no flow there that
 * it may evict. */
#define LEDGER_CHOICE 4
#define LEDGER_LOOKS 16

/* Answers of ledger_look. */
#define LEDGER_NEVER -1
#define LEDGER_IDLE 0x3fffffff
#define LEDGER_FREE (LEDGER_IDLE + 1)

/* The sizes of the ledgers, set by the loader. */
const volatile __u32 ledger_size4;
const volatile __u32 ledger_size6;

/* How long a flow may wait for its first answer before others, in jiffies, set by the loader. */
const volatile __u32 ledger_spare;

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

/* Reports how willingly the flow at an index of the ledger makes room for a new flow of the pod
 * in a slot: LEDGER_NEVER, LEDGER_FREE, or the idle time in jiffies. Sets share to the slot that
 * the flow counts for. A global function, so that the verifier checks it only once. */
__noinline int ledger_look(__u32 place, __u32 slot, __u32 now, __u32 *share, int v6)
{
	void *entry = ledger_entry(place, v6);
	__s32 *own, *other;
	struct conn *c;
	__u32 idle;

	if (!entry || !share)
		return LEDGER_NEVER;
	c = v6 ? bpf_map_lookup_elem(&conns6, entry) : bpf_map_lookup_elem(&conns4, entry);
	if (!c)
		return LEDGER_FREE;
	*share = c->share;
	if (conn_expired(c, v6 ? ((struct conn_key6 *)entry)->protocol : ((struct conn_key4 *)entry)->protocol, now))
		return LEDGER_FREE;
	if (c->share != slot) {
		own = share_of(slot, v6);
		other = share_of(c->share, v6);
		if (!own || !other || *other <= *own)
			return LEDGER_NEVER;
	}
	idle = now - c->seen;
	return idle > ledger_spare && c->state == CONN_OPENING ? LEDGER_FREE : (int)(idle & LEDGER_IDLE);
}

/* Finds an index for a flow of the pod in a slot, and evicts the flow that has it. Returns its
 * entry in the ledger, or NULL. No other program uses the entry until the hand returns. */
static __always_inline void *ledger_take(__u32 slot, __u32 now, bool v6)
{
	__u32 zero = 0, size = v6 ? ledger_size6 : ledger_size4, place, found = 0, share = 0, of = 0;
	struct ledger_hand *hand = bpf_map_lookup_elem(&ledger_hands, &zero);
	int idle, longest = LEDGER_NEVER;
	void *entry;

	if (!hand || !size || !share_of(slot, v6))
		return NULL;
	for (int i = 0; i < LEDGER_CHOICE || (longest == LEDGER_NEVER && i < LEDGER_LOOKS); i++) {
		place = __sync_fetch_and_add(&hand->looked[v6], 1) % size;
		idle = ledger_look(place, slot, now, &share, v6);
		if (idle <= longest)
			continue;
		longest = idle;
		found = place;
		of = share;
		if (idle == LEDGER_FREE)
			break;
	}
	entry = longest == LEDGER_NEVER ? NULL : ledger_entry(found, v6);
	if (entry && !(v6 ? bpf_map_delete_elem(&conns6, entry) : bpf_map_delete_elem(&conns4, entry)))
		count_share(of, v6, -1);
	return entry;
}

/* Stores the entry of a flow and counts it for the slot in c->share. Returns 0, or a negative
 * number if there is no room. If another CPU has stored the flow meanwhile, that entry stays. */
static __always_inline long conn_put(struct conn_place *at, struct conn *c, bool v6)
{
	void *entry;
	long err;

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
	entry = ledger_take(c->share, c->seen, v6);
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
