/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "pod_policy.h"
#include "ledger.h"

/* Flows of an older map layout. In an upgrade, user space passes them to this program, because
 * only programs may keep the ledger consistent. */

/* The fields of a flow that an upgrade migrates. The names match those in all layouts. */
struct carried_flow {
	__u32 seen;
	__u8 state;
	__u8 side[2]; /* up to layout v2, as are flags and packets */
	__u8 flags;
	__u64 packets[2];
	struct approval end[2]; /* since layout v3, as are flow_flags and sent */
	__u32 flow_flags;
	__u32 sent[2];
	__u16 backend_port;
	__u16 client_port;
	__u8 backend[16];
	__u8 client[16];
};

/* A flow to store. */
struct adoption {
	struct conn conn; /* for FLOW_KNOWN, becomes the flow in the table */
	struct conn_key6 key6;
	struct conn_key4 key4;
	__u32 v6;
	__u32 slots[2]; /* of the two ends; NO_SLOT if the end is not a pod of this node */
	/* Replace a known flow, if its entry has the generation of conn.version, these roles, and
	 * these flags. */
	__u32 replace;
	struct approval had[2];
	__u32 had_flags;
};

/* The results of adopt_flow. */
enum adoption_result {
	FLOW_ADOPTED = 0,
	FLOW_KNOWN = 1, /* was in the table already */
	FLOW_NO_ROOM = 2,
};

/* Returns the end of a flow that is not a pod of this node, or either end if both are. */
static __always_inline struct ip remote_end(const struct adoption *a, bool end)
{
	struct ip remote = {};

	if (a->v6 && end)
		__builtin_memcpy(&remote, a->key6.addr[1], 16);
	else if (a->v6)
		__builtin_memcpy(&remote, a->key6.addr[0], 16);
	else if (end)
		__builtin_memcpy(&remote.word[3], a->key4.addr[1], 4);
	else
		__builtin_memcpy(&remote.word[3], a->key4.addr[0], 4);
	return remote;
}

/* Copies a flow, without the version of its entry. Other programs must not see the copy. */
static __always_inline void copy_conn(struct conn *to, const struct conn *from)
{
	__builtin_memcpy(&to->seen, &from->seen, sizeof(*to) - offsetof(struct conn, seen));
}

/* Replaces a flow whose entry the caller holds. The roles come last, each end with one store: they
 * have another epoch, so no program uses them before it has evaluated the flow as it is now. */
static __always_inline void replace_conn(struct conn *to, const struct conn *from)
{
	__builtin_memcpy(&to->seen, &from->seen, offsetof(struct conn, end) - offsetof(struct conn, seen));
	__builtin_memcpy(&to->sent, &from->sent, sizeof(*to) - offsetof(struct conn, sent));
	order_loads(); /* and stores */
	approve(to, false, from->end[0].authorised, from->end[0].epoch);
	approve(to, true, from->end[1].authorised, from->end[1].epoch);
}

static __always_inline bool same_approval(const struct conn *c, const struct adoption *a, int end)
{
	struct approval now = approval_of(c, end);

	return now.epoch == a->had[end].epoch && now.authorised == a->had[end].authorised;
}

/* Reads or replaces a flow that the table has. Both roles become those of another policy, so
 * the next packets revalidate them. */
static __always_inline enum adoption_result merge_flow(struct adoption *a, struct conn *c, __u32 generation)
{
	enum adoption_result result = FLOW_KNOWN;

	if (a->replace && (a->conn.version & ~VERSION_HOLDERS) != generation)
		return FLOW_NO_ROOM;
	if (!conn_hold(c, generation))
		return FLOW_NO_ROOM;
	if (!a->replace) {
		copy_conn(&a->conn, c);
		a->conn.version = generation;
	} else if (same_approval(c, a, 0) && same_approval(c, a, 1) && c->flow_flags == a->had_flags) {
		replace_conn(c, &a->conn);
		result = FLOW_ADOPTED;
	}
	conn_release(c);
	return result;
}

/* Reads a struct adoption in place of a packet. Returns an enum adoption_result. */
SEC("tc")
int adopt_flow(struct __sk_buff *skb)
{
	struct adoption *a = (void *)(long)skb->data;
	struct conn_place at = {};
	struct ip remote;
	struct conn *c;
	int index;
	bool v6, end;
	__u32 slot, flags, made;
	long err;

	if ((void *)(a + 1) > (void *)(long)skb->data_end)
		return FLOW_NO_ROOM;
	v6 = a->v6;
	if (v6)
		at.key.v6 = a->key6;
	else
		at.key.v4 = a->key4;
	index = conn_lookup(&at, v6);
	if (index >= 0) {
		c = v6 ? conn_in(index, &at, true) : conn_in(index, &at, false);
		return c ? merge_flow(a, c, at.generation) : FLOW_NO_ROOM;
	}
	end = a->slots[0] != NO_SLOT; /* index of the remote end */
	slot = end ? a->slots[0] : a->slots[1];
	flags = a->conn.flow_flags;
	remote = remote_end(a, end);
	if (!(class_of_address(&remote, v6) & PEER_POD))
		flags |= CONN_OUTSIDE;
	c = v6 ? conn_begin(&at, slot, a->conn.seen, &made, &err, true) : conn_begin(&at, slot, a->conn.seen, &made, &err, false);
	if (!c)
		return FLOW_NO_ROOM;
	copy_conn(c, &a->conn);
	c->flow_flags = flags;
	c->share = slot;
	/* The slots of a flow between two pods of this node, 0 for other flows. Without branches,
	 * the verifier checks what follows once. */
	_Static_assert(CONN_DIRECT == 1, "makes a mask");
	c->place[0] = (a->slots[0] | PLACE_IS_SLOT) & -(flags & CONN_DIRECT);
	c->place[1] = (a->slots[1] | PLACE_IS_SLOT) & -(flags & CONN_DIRECT);
	if (v6)
		conn_publish(&at, c, made, true);
	else
		conn_publish(&at, c, made, false);
	return FLOW_ADOPTED;
}
