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
	__u16 pad;
	__u8 backend[16];
	__u8 client[16];
};

struct adoption {
	struct conn conn;
	struct conn_key6 key6;
	struct conn_key4 key4;
	__u32 v6;
	__u32 slots[2]; /* of the two ends; NO_SLOT if the end is no pod of this node */
	__u32 pad;
};

/* The results of adopt_flow. */
enum adoption_result {
	FLOW_ADOPTED = 0,
	FLOW_KNOWN = 1, /* was in the table already */
	FLOW_NO_ROOM = 2,
};

/* Reads a struct adoption in place of a packet. Returns an enum adoption_result. */
SEC("tc")
int adopt_flow(struct __sk_buff *skb)
{
	struct adoption *a = (void *)(long)skb->data;
	struct conn_place at = {};
	struct ip remote = {};
	struct conn *was, c;
	bool v6, end;

	if ((void *)(a + 1) > (void *)(long)skb->data_end)
		return FLOW_NO_ROOM;
	v6 = a->v6;
	c = a->conn;
	if (v6)
		at.key.v6 = a->key6;
	else
		at.key.v4 = a->key4;
	was = v6 ? bpf_map_lookup_elem(&conns6, &at.key.v6) : bpf_map_lookup_elem(&conns4, &at.key.v4);
	if (was)
		return FLOW_KNOWN;
	c.share = a->slots[0];
	end = c.share != NO_SLOT; /* index of the remote end */
	if (!end)
		c.share = a->slots[1];
	if (v6 && end)
		__builtin_memcpy(&remote, at.key.v6.addr[1], 16);
	else if (v6)
		__builtin_memcpy(&remote, at.key.v6.addr[0], 16);
	else if (end)
		__builtin_memcpy(&remote.word[3], at.key.v4.addr[1], 4);
	else
		__builtin_memcpy(&remote.word[3], at.key.v4.addr[0], 4);
	if (!(class_of_address(&remote, v6) & PEER_POD))
		c.flow_flags |= CONN_OUTSIDE;
	/* The slots of a flow between two pods of this node, 0 for other flows. Without branches,
	 * the verifier checks what follows once. */
	_Static_assert(CONN_DIRECT == 1, "makes a mask");
	c.place[0] = (a->slots[0] | PLACE_IS_SLOT) & -(c.flow_flags & CONN_DIRECT);
	c.place[1] = (a->slots[1] | PLACE_IS_SLOT) & -(c.flow_flags & CONN_DIRECT);
	return (v6 ? conn_put(&at, &c, true) : conn_put(&at, &c, false)) ? FLOW_NO_ROOM : FLOW_ADOPTED;
}
