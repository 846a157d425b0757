/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "maps.h"
#include "parse.h"

/* What a pod sends to an address that is no pod's may be for a Service: the
 * stack then translates the destination, and egress policy is about the result.
 * from_pod leaves a record of such a packet and its number in the mark; behind
 * the translation bpf/egress.bpf.c decides. What needs no decision there is
 * marked as approved, and what has neither mark is dropped.
 *
 * A mark's upper half is the place of the record. Below are four bits for its
 * kind and ten for how often the place has been used. Bits 14 and 15 are left to
 * kube-proxy.
 *
 * In an upgrade programs of two layouts share the records and see each other's
 * marks: who changes a mark's meaning changes struct pending too, which says so. */
#define MARK_KIND 0x00003c00
#define MARK_OURS 0xffff3fff
#define MARK_APPROVED 0x00001400
#define MARK_PENDING 0x00002800
#define MARK_ROUND 0x000003ff

#define PENDING 65536

/* Whether the programs of this layout decide alone. In an upgrade those of an older
 * one see the records, too: they do not know PACKET_ANSWER, and are not given a
 * record for every packet. The agent writes it. */
volatile __u32 decides_alone;

/* A packet on its way to the translation. */
struct pending {
	__u32 mark;
	__u32 slot;
	struct flow flow; /* before the translation */
	__u8 kind;
	__u8 closes; /* for programs of older layouts: 1 with a FIN, 2 with a RST */
	__u8 pad[2];
};
_Static_assert(sizeof(struct pending) == 52, "layout");

/* Written by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PENDING);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct pending);
} pending SEC(".maps");

/* How many records were ever written. */
struct record_count {
	__u64 written;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct record_count);
} pending_count SEC(".maps");

/* kube-proxy translates these. */
static __always_inline bool translatable(const struct packet *p)
{
	__u8 protocol = p->flow.protocol;

	return p->kind != PACKET_ERROR && (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP);
}

/* Leaves a record and returns the mark that names it. */
static __always_inline __u32 leave_record(const struct packet *p, __u32 slot, __u8 kind)
{
	__u32 zero = 0, place;
	struct record_count *count = bpf_map_lookup_elem(&pending_count, &zero);
	struct pending *r;
	__u64 n;

	if (!count)
		return 0;
	n = __sync_fetch_and_add(&count->written, 1);
	place = n % PENDING;
	r = bpf_map_lookup_elem(&pending, &place);
	if (!r)
		return 0;
	r->mark = place << 16 | MARK_PENDING | (n / PENDING & MARK_ROUND);
	r->slot = slot;
	r->flow = p->flow;
	r->kind = kind;
	r->closes = (p->tcp & PACKET_FIN) | (p->tcp & PACKET_RST) >> 1;
	return r->mark;
}
