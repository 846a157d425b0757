/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "maps.h"
#include "parse.h"

/* How long a flow may be idle, in jiffies, set by the loader: its roles are
 * forgotten after that. */
const volatile __u32 timeout_opening;
const volatile __u32 timeout_tcp;
const volatile __u32 timeout_other;
const volatile __u32 timeout_closing;

/* The key of a flow and where its ends are in it. */
struct conn_place {
	union {
		struct conn_key4 v4;
		struct conn_key6 v6;
	} key;
	bool src; /* index of the end that sent the packet */
};

/* What an array of struct conn holds of one end. */
#define OF_END(array, end) (*((end) ? &(array)[1] : &(array)[0]))

/* Any order will do as long as both directions agree on it. */
static __always_inline bool source_first(const struct flow *f, bool v6)
{
#pragma unroll
	for (int i = v6 ? 0 : 3; i < 4; i++) {
		if (f->src.word[i] != f->dst.word[i])
			return f->src.word[i] < f->dst.word[i];
	}
	return f->src_port <= f->dst_port;
}

static __always_inline void conn_place(const struct flow *f, struct conn_place *at, bool v6)
{
	bool ordered = source_first(f, v6);
	const struct ip *low = ordered ? &f->src : &f->dst, *high = ordered ? &f->dst : &f->src;
	__u16 low_port = ordered ? f->src_port : f->dst_port, high_port = ordered ? f->dst_port : f->src_port;

	at->src = !ordered;
	if (v6) {
		__builtin_memcpy(at->key.v6.addr[0], low, 16);
		__builtin_memcpy(at->key.v6.addr[1], high, 16);
		at->key.v6.port[0] = low_port;
		at->key.v6.port[1] = high_port;
		at->key.v6.protocol = f->protocol;
	} else {
		__builtin_memcpy(at->key.v4.addr[0], &low->word[3], 4);
		__builtin_memcpy(at->key.v4.addr[1], &high->word[3], 4);
		at->key.v4.port[0] = low_port;
		at->key.v4.port[1] = high_port;
		at->key.v4.protocol = f->protocol;
	}
}

/* Whether the flow was idle too long to count as the same flow. */
static __always_inline bool conn_expired(const struct conn *c, __u8 protocol, __u32 now)
{
	__u32 limit = timeout_other;

	if (c->state == CONN_OPENING)
		limit = timeout_opening;
	else if (c->state == CONN_CLOSING)
		limit = timeout_closing;
	else if (protocol == IPPROTO_TCP)
		limit = timeout_tcp;
	return now - c->seen > limit;
}

/* The entry of a flow, or NULL if there is none or it has expired. */
static __always_inline struct conn *conn_find(struct conn_place *at, __u8 protocol, __u32 now, bool v6)
{
	struct conn *c = v6 ? bpf_map_lookup_elem(&conns6, &at->key.v6) : bpf_map_lookup_elem(&conns4, &at->key.v4);

	if (c && conn_expired(c, protocol, now))
		return NULL;
	return c;
}

static __always_inline void conn_create(struct conn_place *at, struct conn *c, bool v6)
{
	if (v6)
		bpf_map_update_elem(&conns6, &at->key.v6, c, BPF_ANY);
	else
		bpf_map_update_elem(&conns4, &at->key.v4, c, BPF_ANY);
}

/* Notes a packet that passes. from is the end that sent it. Counts may lose an
 * increment when both ends send at once; they are for people. */
static __always_inline void conn_seen(struct conn *c, const struct packet *p, __u32 bytes, bool from, __u32 now)
{
	c->seen = now;
	if (p->kind == PACKET_OPENS && c->state == CONN_CLOSING)
		c->state = CONN_OPENING; /* the ports are used again */
	else if (p->closes)
		c->state = CONN_CLOSING;
	else if (c->state == CONN_OPENING && OF_END(c->packets, !from) && p->kind != PACKET_OPENS)
		c->state = CONN_ESTABLISHED;
	OF_END(c->packets, from)++;
	OF_END(c->bytes, from) += bytes;
}
