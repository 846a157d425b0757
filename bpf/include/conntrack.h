/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "maps.h"
#include "order.h"
#include "parse.h"

/* Idle timeouts of flows, in jiffies, set by the loader. After the timeout, the roles of a flow
 * no longer count. */
const volatile __u32 timeout_opening;
const volatile __u32 timeout_tcp;
const volatile __u32 timeout_other;
const volatile __u32 timeout_closing;

/* The element of an array of struct conn that belongs to one end. */
#define OF_END(array, end) (*((end) ? &(array)[1] : &(array)[0]))

/* Any order works if both directions of a flow agree on it. */
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

/* The version of an entry of the flow table: the number of programs that hold the entry, and a
 * generation, which is odd while the entry has a flow. One program at a time owns an entry. It
 * increments the generation before it writes anything else, and again after it has written a
 * flow. So what a program read between two reads of one odd generation is about one flow.
 *
 * A program changes roles, flags, and addresses of a flow only while it holds the entry.
 * Nothing can own an entry that is held. So a program that was interrupted for long never gives
 * a role to the next flow of the entry. Times, counts, and the TCP state may reach that flow;
 * they decide how long it lives, not what policy allows. */
enum conn_version {
	VERSION_HOLDERS = 0xff,
	VERSION_OWNED = 0xff, /* in place of the number of holders */
	VERSION_LIVE = 0x100, /* the lowest bit of the generation */
};

/* The most programs that hold an entry, and the attempts to become one of them. */
#define HOLDERS_MAX 0xf0
#define HOLD_TRIES 64

/* The sizes of conns4 and conns6, set by the loader. */
const volatile __u32 conns_size4;
const volatile __u32 conns_size6;

static __always_inline __u32 version_of(const struct conn *c)
{
	return *(const volatile __u32 *)&c->version;
}

/* The end of a flow and the generation of its entry as one argument of a function. */
#define END_IN(at, side) ((at)->generation | (side))
#define SIDE_OF(end) ((end) & 1)

/* Reports whether an entry still has the flow that conn_find found. */
static __always_inline bool conn_remains(const struct conn *c, __u32 end)
{
	order_loads();
	return !((version_of(c) ^ end) & ~VERSION_HOLDERS);
}

/* Holds the entry of a flow, unless the entry has another flow. A global function, so that the
 * verifier checks it only once. */
__noinline int conn_hold(struct conn *c, __u32 end)
{
	__u32 generation = end & ~VERSION_HOLDERS, was, now;

	if (!c)
		return false;
	was = version_of(c);
	for (int i = 0; i < HOLD_TRIES; i++) {
		if ((was & ~VERSION_HOLDERS) != generation || (was & VERSION_HOLDERS) >= HOLDERS_MAX)
			return false;
		now = __sync_val_compare_and_swap(&c->version, was, was + 1);
		if (now == was)
			return true;
		was = now;
	}
	return false;
}

static __always_inline void conn_release(struct conn *c)
{
	/* Only atomic operations whose result is used are full barriers. */
	asm volatile("" ::"r"(__sync_fetch_and_sub(&c->version, 1)) : "memory");
}

/* A packet may pass while another CPU has read the clock, which then is behind. */
#define CLOCK_SLACK 0x10000

/* Returns how long a flow was idle. */
static __always_inline __u32 conn_idle(const struct conn *c, __u32 now)
{
	__u32 idle = now - *(const volatile __u32 *)&c->seen;

	return idle >= (__u32)-CLOCK_SLACK ? 0 : idle;
}

/* Reports whether a flow was idle for so long that its next packet opens a new flow. */
static __always_inline bool conn_expired(const struct conn *c, __u8 protocol, __u32 now)
{
	__u32 limit = timeout_other;

	if (c->state == CONN_OPENING)
		limit = timeout_opening;
	else if (c->state == CONN_CLOSING)
		limit = timeout_closing;
	else if (protocol == IPPROTO_TCP)
		limit = timeout_tcp;
	return conn_idle(c, now) > limit;
}

/* Returns the hash of a key. Its upper bits depend on all bits of the key. */
static __always_inline __u32 key_hash(const struct conn_place *at, bool v6)
{
	const __u32 *low, *high;
	__u32 hash;

	if (v6) {
		low = (const __u32 *)at->key.v6.addr[0];
		high = (const __u32 *)at->key.v6.addr[1];
		hash = (low[0] ^ high[3]) * 0x9e3779b1 + (low[1] ^ high[2]) * 0x85ebca6b + (low[2] ^ high[1]) * 0xc2b2ae35 + (low[3] ^ high[0]) * 0x27d4eb2f;
		return (hash ^ at->key.v6.port[0]) * 0x165667b1 + at->key.v6.port[1] * 0x9e3779b1 + at->key.v6.protocol;
	}
	low = (const __u32 *)at->key.v4.addr[0];
	high = (const __u32 *)at->key.v4.addr[1];
	return *low * 0x9e3779b1 + *high * 0x85ebca6b + at->key.v4.port[0] * 0xc2b2ae35 + at->key.v4.port[1] * 0x165667b1 + at->key.v4.protocol;
}

/* A hint is the index of an entry, and bits of the hash of its key. With the bits, most
 * lookups skip entries of other flows. */
#define HINT_INDEX 0x00ffffff
#define HINT(index, hash) ((index) | (hash) << 24)

static __always_inline struct conn_hint *hint_of(__u32 hash, bool v6)
{
	__u32 index = (__u64)hash * (v6 ? conns_size6 : conns_size4) >> 32;

	return v6 ? bpf_map_lookup_elem(&conn_hints6, &index) : bpf_map_lookup_elem(&conn_hints4, &index);
}

static __always_inline bool same_key4(const struct conn_key4 *a, const struct conn_key4 *b)
{
	const __u32 *x = (const __u32 *)a->addr, *y = (const __u32 *)b->addr;

	return x[0] == y[0] && x[1] == y[1] && a->port[0] == b->port[0] && a->port[1] == b->port[1] && a->protocol == b->protocol;
}

static __always_inline bool same_key6(const struct conn_key6 *a, const struct conn_key6 *b)
{
	const __u32 *x = (const __u32 *)a->addr, *y = (const __u32 *)b->addr;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3] && x[4] == y[4] && x[5] == y[5] && x[6] == y[6] && x[7] == y[7] &&
		a->port[0] == b->port[0] && a->port[1] == b->port[1] && a->protocol == b->protocol;
}

/* The entry of a flow in conns4 or conns6. */
#define ENTRY4(c) ((struct conn_entry4 *)((void *)(c) - offsetof(struct conn_entry4, conn)))
#define ENTRY6(c) ((struct conn_entry6 *)((void *)(c) - offsetof(struct conn_entry6, conn)))

static __always_inline struct conn *entry_at(__u32 index, bool v6)
{
	struct conn_entry6 *e6;
	struct conn_entry4 *e4;

	/* The verifier allows no arithmetic before the comparison with NULL. */
	if (v6) {
		e6 = bpf_map_lookup_elem(&conns6, &index);
		if (!e6)
			return NULL;
		asm volatile("" : "+r"(e6));
		return &e6->conn;
	}
	e4 = bpf_map_lookup_elem(&conns4, &index);
	if (!e4)
		return NULL;
	asm volatile("" : "+r"(e4));
	return &e4->conn;
}

/* Returns the flow in an entry if it has the key of at, otherwise NULL. */
static __always_inline struct conn *conn_in(__u32 index, struct conn_place *at, bool v6)
{
	struct conn *c = entry_at(index, v6);
	__u32 version;

	if (!c)
		return NULL;
	version = version_of(c);
	order_loads();
	if (!(version & VERSION_LIVE) || !(v6 ? same_key6(&ENTRY6(c)->key, &at->key.v6) : same_key4(&ENTRY4(c)->key, &at->key.v4)))
		return NULL;
	at->generation = version & ~VERSION_HOLDERS;
	return c;
}

/* Looks up the index of a flow and makes it the hint. Returns a negative number for an unknown
 * flow. A global function, so that the verifier checks it only once. */
__noinline int conn_lookup(const struct conn_place *place, int v6)
{
	struct conn_index *found;
	struct conn_hint *hint;
	struct conn_key6 key;
	__u32 hash;

	if (!place)
		return -1;
	key = place->key.v6; /* Linux 6.1 accepts map keys only from the stack */
	found = v6 ? bpf_map_lookup_elem(&conn_index6, &key) : bpf_map_lookup_elem(&conn_index4, &key);
	if (!found)
		return -1;
	hash = v6 ? key_hash(place, true) : key_hash(place, false);
	hint = v6 ? hint_of(hash, true) : hint_of(hash, false);
	if (hint)
		hint->hint = HINT(found->index, hash);
	return found->index;
}

/* Returns the flow, or NULL if it has expired. */
static __always_inline struct conn *unexpired(struct conn *c, struct conn_place *at, __u8 protocol, __u32 now)
{
	if (!c || !conn_expired(c, protocol, now))
		return c;
	at->expired = true;
	return NULL;
}

/* Returns the flow of a key, or NULL if it is unknown or expired. */
static __always_inline struct conn *conn_find(struct conn_place *at, __u8 protocol, __u32 now, bool v6)
{
	__u32 hash = key_hash(at, v6);
	struct conn_hint *hint = hint_of(hash, v6);
	struct conn *c = NULL;
	int index;

	if (hint && !((hint->hint ^ HINT(0, hash)) & ~HINT_INDEX))
		c = conn_in(hint->hint & HINT_INDEX, at, v6);
	if (!c) {
		index = conn_lookup(at, v6);
		if (index < 0)
			return NULL;
		c = conn_in(index, at, v6);
	}
	return unexpired(c, at, protocol, now);
}

/* The same where the family is not a constant. Otherwise the verifier would check the code of one
 * family with the maps of the other. */
static __always_inline struct conn *conn_find_any(struct conn_place *at, __u8 protocol, __u32 now, bool v6)
{
	return v6 ? conn_find(at, protocol, now, true) : conn_find(at, protocol, now, false);
}

/* The same for rare packets, without hints, because the stack is small. */
static __always_inline struct conn *conn_find_rare(struct conn_place *at, __u8 protocol, __u32 now, bool v6)
{
	struct conn_index *found = v6 ? bpf_map_lookup_elem(&conn_index6, &at->key.v6) : bpf_map_lookup_elem(&conn_index4, &at->key.v4);

	if (!found)
		return NULL;
	return unexpired(v6 ? conn_in(found->index, at, true) : conn_in(found->index, at, false), at, protocol, now);
}

/* Only programs that hold the entry change its flags. */
static __always_inline void set_flags(struct conn *c, __u32 flags)
{
	__sync_fetch_and_or(&c->flow_flags, flags);
}

static __always_inline void clear_flags(struct conn *c, __u32 flags)
{
	if (c->flow_flags & flags)
		__sync_fetch_and_and(&c->flow_flags, ~flags);
}

/* Clears flags of a flow, unless its entry has another flow. Returns 0. */
__noinline int conn_leave(struct conn *c, __u32 end, __u32 flags)
{
	if (c && conn_hold(c, end)) {
		clear_flags(c, flags);
		conn_release(c);
	}
	return 0;
}

static __always_inline struct approval approval(__u8 roles, __u32 epoch)
{
	return (struct approval){ .epoch = epoch, .authorised = roles };
}

/* Sets or clears the roles of one end with one store, because two CPUs may decide packets of
 * both directions at once. The caller holds the entry. */
static __always_inline void approve(struct conn *c, bool end, __u8 roles, __u32 epoch)
{
	union {
		struct approval approval;
		__u64 word;
	} next = { .approval = approval(roles, epoch) };

	*(volatile __u64 *)(end ? &c->end[1] : &c->end[0]) = next.word;
}

/* Reads roles and epoch of one end with one load, so that they belong together. */
static __always_inline struct approval approval_of(const struct conn *c, bool end)
{
	union {
		struct approval approval;
		__u64 word;
	} now = { .word = *(const volatile __u64 *)(end ? &c->end[1] : &c->end[0]) };

	return now.approval;
}

/* Reports whether an end has a role that policy has not revoked. */
static __always_inline bool holds(struct approval a)
{
	return (__u8)(a.authorised - 1) < ROLE_REVOKED - 1;
}

/* Follows the closing of a TCP connection. A forged FIN or RST must not end it early. A FIN
 * counts when the other end acknowledges it. An RST from elsewhere counts if its sequence
 * number is the last one that the local pod acknowledged, the only one that the pod accepts
 * (RFC 5961, 3.2). own says that a pod of this node sent the packet. A global function, so that
 * the verifier checks it only once. Returns 0. */
__noinline int conn_closes(struct conn *c, const struct packet *p, int from, int own)
{
	if (!c || !p)
		return 0;
	if ((p->tcp & PACKET_ACK) && (OF_END(c->tcp, !from) & TCP_FIN) && p->ack == OF_END(c->fin, !from))
		OF_END(c->tcp, !from) = TCP_FIN | TCP_CLOSED;
	if (p->tcp & PACKET_FIN) {
		OF_END(c->fin, from) = bpf_htonl(bpf_ntohl(p->seq) + p->payload + 1);
		OF_END(c->tcp, from) |= TCP_FIN;
	}
	if (c->tcp[0] & c->tcp[1] & TCP_CLOSED)
		c->state = CONN_CLOSING;
	if ((p->tcp & PACKET_RST) && c->state == CONN_ESTABLISHED && (own || p->seq == OF_END(c->acked, !from)))
		c->state = CONN_CLOSING;
	return 0;
}

/* Updates the TCP state of a flow. own says that a pod of this node sent the packet. */
static __always_inline void conn_tcp(struct conn *c, const struct packet *p, bool from, bool own)
{
	if (own && (p->tcp & PACKET_ACK))
		OF_END(c->acked, from) = p->ack;
	if ((p->tcp & (PACKET_FIN | PACKET_RST)) || (c->tcp[0] | c->tcp[1]))
		conn_closes(c, p, from, own);
}

/* Records a packet that passes. from is the end that sent it; own says that this end is a pod
 * of this node. Packet counts may miss an increment when both ends send at once; no decision
 * depends on them, except whether an end has sent at all. */
static __always_inline void conn_seen(struct conn *c, const struct packet *p, bool from, bool own, __u32 now)
{
	c->seen = now;
	if (p->kind == PACKET_OPENS) {
		c->tcp[0] = c->tcp[1] = 0;
		if (c->state == CONN_CLOSING)
			c->state = CONN_OPENING; /* the same ports open a new connection */
	} else {
		if (c->state == CONN_OPENING && OF_END(c->sent, !from))
			c->state = CONN_ESTABLISHED;
		conn_tcp(c, p, from, own);
	}
	OF_END(c->sent, from) += 1;
}
