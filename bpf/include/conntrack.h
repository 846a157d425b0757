/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "maps.h"
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
	return now - c->seen > limit;
}

/* Returns the entry of a flow, or NULL if it is missing or expired. */
static __always_inline struct conn *conn_find(struct conn_place *at, __u8 protocol, __u32 now, bool v6)
{
	struct conn *c = v6 ? bpf_map_lookup_elem(&conns6, &at->key.v6) : bpf_map_lookup_elem(&conns4, &at->key.v4);

	if (c && conn_expired(c, protocol, now)) {
		at->expired = true;
		return NULL;
	}
	return c;
}

static __always_inline struct approval approval(__u8 roles, __u32 epoch)
{
	return (struct approval){ .epoch = epoch, .authorised = roles };
}

/* Sets or clears the roles of one end with one store, because two CPUs may decide packets of
 * both directions at once. */
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

static __always_inline void set_flags(struct conn *c, __u32 flags)
{
	__sync_fetch_and_or(&c->flow_flags, flags);
}

static __always_inline void clear_flags(struct conn *c, __u32 flags)
{
	if (c->flow_flags & flags)
		__sync_fetch_and_and(&c->flow_flags, ~flags);
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
