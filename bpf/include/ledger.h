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

/* How long a flow may wait for its first answer before others, in jiffies, set by the loader. */
const volatile __u32 ledger_spare;

static __always_inline __s32 *share_of(__u32 slot, bool v6)
{
	struct flow_share *s = bpf_map_lookup_elem(&flow_shares, &slot);

	if (!s)
		return NULL;
	asm volatile("" : "+r"(s)); /* no arithmetic before the comparison, see entry_at */
	return &s->flows[v6];
}

/* Counts an entry for another slot than before. NO_SLOT counts nothing. */
static __always_inline void move_share(__u32 from, __u32 to, bool v6)
{
	__s32 *had = from == to ? NULL : share_of(from, v6), *has = from == to ? NULL : share_of(to, v6);

	if (had)
		__sync_fetch_and_add(had, -1);
	if (has)
		__sync_fetch_and_add(has, 1);
}

/* Owns an entry with a version, unless it is held or changed meanwhile. Nothing else writes the
 * entry then, and nothing reads a flow in it. */
static __always_inline bool conn_own(struct conn *c, __u32 version)
{
	__u32 free = version & ~VERSION_HOLDERS;

	if (version & VERSION_HOLDERS)
		return false;
	if (version & VERSION_LIVE)
		free += VERSION_LIVE;
	return __sync_val_compare_and_swap(&c->version, version, free | VERSION_OWNED) == version;
}

/* Ends the ownership of an entry. It is free, or has the flow that its owner wrote. */
static __always_inline void conn_disown(struct conn *c, __u32 live)
{
	__u32 next = (c->version & ~VERSION_HOLDERS) + live;

	asm volatile("" ::: "memory");
	if (!unordered_loads) /* then stores are in order, too */
		*(volatile __u32 *)&c->version = next;
	else
		asm volatile("" ::"r"(__sync_lock_test_and_set(&c->version, next)));
}

/* Returns an entry, and the protocol in its key. */
static __always_inline struct conn *look_at(__u32 index, __u8 *protocol, bool v6)
{
	struct conn *c = entry_at(index, v6);

	if (c)
		*protocol = v6 ? ENTRY6(c)->key.protocol : ENTRY4(c)->key.protocol;
	return c;
}

/* Reports how willingly the flow in an entry makes room for a new flow of the pod in a slot:
 * LEDGER_NEVER, LEDGER_FREE, or the idle time in jiffies. Sets version to that of the entry. A
 * global function, so that the verifier checks it only once. */
__noinline int ledger_look(__u32 index, __u32 slot, __u32 now, __u32 *version, int v6)
{
	__u8 protocol = 0;
	struct conn *c = v6 ? look_at(index, &protocol, true) : look_at(index, &protocol, false);
	__s32 *own, *other;
	__u32 idle;

	if (!c || !version)
		return LEDGER_NEVER;
	*version = version_of(c);
	order_loads();
	if (*version & VERSION_HOLDERS)
		return LEDGER_NEVER;
	if (!(*version & VERSION_LIVE) || conn_expired(c, protocol, now))
		return LEDGER_FREE;
	if (c->share != slot) {
		own = share_of(slot, v6);
		other = share_of(c->share, v6);
		if (!own || !other || *other <= *own)
			return LEDGER_NEVER;
	}
	idle = conn_idle(c, now);
	return idle > ledger_spare && c->state == CONN_OPENING ? LEDGER_FREE : (int)(idle & LEDGER_IDLE);
}

/* Finds the entry that makes room for a flow of the pod in a slot. Returns its index, and sets
 * version; or returns a negative number. */
static __always_inline int ledger_find(__u32 slot, __u32 now, __u32 *version, bool v6)
{
	__u32 zero = 0, size = v6 ? conns_size6 : conns_size4, index, seen = 0;
	struct ledger_hand *hand = bpf_map_lookup_elem(&ledger_hands, &zero);
	int idle, longest = LEDGER_NEVER, found = -1;

	if (!hand || !size || !share_of(slot, v6))
		return -1;
	for (int i = 0; i < LEDGER_CHOICE || (longest == LEDGER_NEVER && i < LEDGER_LOOKS); i++) {
		index = __sync_fetch_and_add(&hand->looked[v6], 1) % size;
		idle = ledger_look(index, slot, now, &seen, v6);
		if (idle <= longest)
			continue;
		longest = idle;
		found = index;
		*version = seen;
		if (idle == LEDGER_FREE)
			break;
	}
	return found;
}

/* Removes the index of the flow in an entry that the caller owns. */
static __always_inline void remove_index(struct conn *c, bool v6)
{
	if (v6)
		bpf_map_delete_elem(&conn_index6, &ENTRY6(c)->key);
	else
		bpf_map_delete_elem(&conn_index4, &ENTRY4(c)->key);
}

/* Removes the index of a flow if the entry there neither has the flow nor an owner, who may be
 * about to write it. The programs leave no such index. Returns 0. */
__noinline int repair_index(const struct conn_place *place, int v6)
{
	struct conn_index *found;
	struct conn_place at;
	struct conn *c;

	if (!place)
		return 0;
	at = *place; /* Linux 6.1 accepts map keys only from the stack */
	found = v6 ? bpf_map_lookup_elem(&conn_index6, &at.key.v6) : bpf_map_lookup_elem(&conn_index4, &at.key.v4);
	if (!found)
		return 0;
	c = v6 ? entry_at(found->index, true) : entry_at(found->index, false);
	if (c && ((version_of(c) & VERSION_HOLDERS) == VERSION_OWNED || (v6 ? conn_in(found->index, &at, true) : conn_in(found->index, &at, false))))
		return 0;
	return v6 ? bpf_map_delete_elem(&conn_index6, &at.key.v6) : bpf_map_delete_elem(&conn_index4, &at.key.v4);
}

/* Owns an entry for a flow of the pod in a slot that is in no entry, evicts the flow that the
 * entry has, and gives it the key and an index. had becomes the slot of the evicted flow, to
 * the index. Returns the entry, or NULL and an error. */
static __always_inline struct conn *conn_take(struct conn_place *at, __u32 slot, __u32 now, __u32 *had, struct conn_index *to, long *err, bool v6)
{
	__u32 version = 0;
	struct conn *c;
	int found = ledger_find(slot, now, &version, v6);

	*err = -1;
	if (found < 0)
		return NULL;
	to->index = found;
	c = entry_at(found, v6);
	if (!c || !conn_own(c, version))
		return NULL;
	*had = version & VERSION_LIVE ? c->share : NO_SLOT;
	if (version & VERSION_LIVE)
		remove_index(c, v6);
	if (v6)
		ENTRY6(c)->key = at->key.v6;
	else
		ENTRY4(c)->key = at->key.v4;
	/* Before Linux 6.4 only the lower half of the result is valid. */
	*err = (int)(v6 ? bpf_map_update_elem(&conn_index6, &at->key.v6, to, BPF_NOEXIST) :
			  bpf_map_update_elem(&conn_index4, &at->key.v4, to, BPF_NOEXIST));
	if (!*err)
		return c;
	move_share(*had, NO_SLOT, v6);
	conn_disown(c, 0);
	if (*err == -17 /* EEXIST */)
		*err = repair_index(at, v6);
	return NULL;
}

/* Owns the entry of an expired flow, which has a key and an index already. Returns NULL if it
 * has another flow, or a holder. Only the key says that an entry has the flow: entries of
 * several flows may have the same generation. */
static __always_inline struct conn *conn_reopen(struct conn_place *at, __u32 *had, struct conn_index *to, bool v6)
{
	__u32 generation = at->generation;
	struct conn *c;
	int index;

	if (!at->expired)
		return NULL;
	index = conn_lookup(at, v6);
	if (index < 0)
		return NULL;
	to->index = index;
	c = conn_in(index, at, v6);
	if (!c || at->generation != generation || !conn_own(c, generation))
		return NULL;
	*had = c->share;
	return c;
}

/* Begins to store a flow of the pod in a slot. Returns its entry, which the caller owns, with
 * all fields of the flow 0, and sets made to its index. The caller writes them and calls
 * conn_publish. Returns NULL and an error if there is no room. Returns NULL and no error if
 * another CPU has stored the flow meanwhile. */
static __always_inline struct conn *conn_begin(struct conn_place *at, __u32 slot, __u32 now, __u32 *made, long *err, bool v6)
{
	struct conn_index to = {};
	__u32 had = NO_SLOT;
	struct conn *c = conn_reopen(at, &had, &to, v6);

	*err = 0;
	if (!c)
		c = conn_take(at, slot, now, &had, &to, err, v6);
	if (!c)
		return NULL;
	__builtin_memset(&c->seen, 0, sizeof(*c) - offsetof(struct conn, seen));
	c->seen = now;
	c->share = slot;
	move_share(had, slot, v6);
	*made = to.index;
	return c;
}

/* Makes a flow known, whose entry has an index. */
static __always_inline void conn_publish(struct conn_place *at, struct conn *c, __u32 index, bool v6)
{
	__u32 hash = key_hash(at, v6);
	struct conn_hint *hint = hint_of(hash, v6);

	conn_disown(c, VERSION_LIVE);
	if (hint)
		hint->hint = HINT(index, hash);
}
