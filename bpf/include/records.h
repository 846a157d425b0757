/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "order.h"
#include "post_dnat.h"

/* How from_pod stores records. Records have their places in turn. A packet gets the record of an
 * earlier one if its own would be equal, so that most packets of a flow write no memory that other
 * CPUs use. */

/* The number of records written so far. */
struct record_count {
	__u64 written;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct record_count);
} post_dnat_count SEC(".maps");

#define RECORD_HINTS 16384

/* Marks of the last records, by a hash of the flow. A hint may be wrong: the record tells. The
 * mark may be of the other mode, which uses bits that other plugins own. Programs read and write a
 * hint as one 64-bit word. */
struct record_hint {
	__u32 mark;
	__u32 epoch; /* of the slot when the record was written; 0 if the program had not read the slot */
};
_Static_assert(sizeof(struct record_hint) == 8, "written as one word");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECORD_HINTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct record_hint);
} record_hints SEC(".maps");

/* Returns the place of a flow's hint. */
static __always_inline __u32 hint_place(const struct flow *f)
{
	__u32 ports = (__u32)f->src_port << 16 | f->dst_port;

	return (f->src.word[3] * 0x9e3779b1 + f->dst.word[3] * 0x85ebca6b + ports * 0xc2b2ae35) >> 18;
}

static __always_inline bool same_flow(const struct flow *a, const struct flow *b)
{
	return same(&a->src, &b->src) && same(&a->dst, &b->dst) && a->src_port == b->src_port && a->dst_port == b->dst_port && a->protocol == b->protocol;
}

/* The bits of the number of a record that all marks hold: the place, and the lower bits of the round. */
#define RECORD_NUMBER 0x007fffff

/* Returns the bits of a mark that count how often a place was used, for the record with a number. */
static __always_inline __u32 round_of(__u64 n)
{
	__u32 round = n / POST_DNAT_RECORDS;

	/* bit 7 belongs to another plugin */
	return foreign ? (round & 0x7f) | (round << 1 & 0x300) : round & MARK_ROUND;
}

/* Reports whether a record stays for long enough that another packet may name it: the next half of
 * the places does not include its own. */
static __always_inline bool record_stays(__u32 mark, __u64 written)
{
	__u32 number = mark << 16 | mark >> 16;

	return ((written - number - 1) & RECORD_NUMBER) < POST_DNAT_RECORDS / 2;
}

/* Returns the hint of a flow, NULL for an invalid place. */
static __always_inline volatile __u64 *find_hint(const struct flow *f)
{
	__u32 at = hint_place(f);

	return bpf_map_lookup_elem(&record_hints, &at);
}

/* Reports whether a pod has sent a packet of a flow, since its slot got this epoch, that has a record
 * still. Returns false, too, if another flow has taken the hint. */
__noinline int has_record(const struct flow *f, __u32 epoch)
{
	struct post_dnat_record *r;
	struct record_hint hint;
	volatile __u64 *found;
	__u32 place;

	if (!f)
		return false;
	found = find_hint(f);
	if (!found)
		return false;
	*(__u64 *)&hint = *found;
	place = hint.mark >> 16;
	r = bpf_map_lookup_elem(&post_dnat, &place);
	if (!r || hint.epoch != epoch || *(volatile __u32 *)&r->mark != hint.mark)
		return false;
	order_loads();
	if (!same_flow(&r->flow, f))
		return false;
	order_loads();
	return *(volatile __u32 *)&r->mark == hint.mark;
}

/* The mark of a record that a program writes. No packet has it. */
#define RECORD_OWNED 1

/* Owns a record, unless another CPU does: one that a hypervisor has stopped while the others wrote a
 * whole round. Nothing else writes the record then, and no packet names it. */
static __always_inline bool own_record(struct post_dnat_record *r)
{
	__u32 was = *(volatile __u32 *)&r->mark;

	return was != RECORD_OWNED && __sync_val_compare_and_swap(&r->mark, was, RECORD_OWNED) == was;
}

/* Returns the mark of a record of the packet: one that is there, or one that it stores. Returns 0
 * if there is none. A global function, so that the verifier checks it only once. */
__noinline __u32 store_record(const struct packet *p, __u32 slot, __u32 epoch, __u8 kind)
{
	struct post_dnat_record *r;
	struct record_count *count;
	struct record_hint hint;
	volatile __u64 *found;
	__u32 zero = 0, place;
	__u8 closes;
	__u64 n;

	if (!p)
		return 0;
	closes = (p->tcp & PACKET_FIN) | (p->tcp & PACKET_RST) >> 1;
	count = bpf_map_lookup_elem(&post_dnat_count, &zero);
	found = find_hint(&p->flow);
	if (!count || !found)
		return 0;
	*(__u64 *)&hint = *found;
	order_loads();
	place = hint.mark >> 16;
	r = bpf_map_lookup_elem(&post_dnat, &place);
	if (r && r->mark == hint.mark && r->slot == slot && hint.epoch == epoch && r->kind == kind && r->closes == closes &&
	    same_flow(&r->flow, &p->flow) && (hint.mark & MARK_KIND) == MARK_POST_DNAT &&
	    record_stays(hint.mark, *(volatile __u64 *)&count->written))
		return hint.mark;
	n = __sync_fetch_and_add(&count->written, 1);
	place = n % POST_DNAT_RECORDS;
	r = bpf_map_lookup_elem(&post_dnat, &place);
	if (!r || !own_record(r))
		return 0;
	hint.mark = place << 16 | MARK_POST_DNAT | round_of(n);
	hint.epoch = epoch;
	r->slot = slot;
	r->flow = p->flow;
	r->kind = kind;
	r->closes = closes;
	order_loads(); /* orders stores, too: a mark is there only after its record, a hint after the mark */
	*(volatile __u32 *)&r->mark = hint.mark;
	order_loads();
	*found = *(__u64 *)&hint;
	return hint.mark;
}
