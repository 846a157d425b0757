/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "maps.h"
#include "order.h"
#include "mode.h"
#include "parse.h"

/* Returns the class of a remote address, with PEER_POD: that of its own entry, else of the
 * longest prefix, else 0. */
static __always_inline __u32 class_of(const struct ip *addr, bool v6)
{
	struct peer_class *found;

	if (v6) {
		struct prefix6 prefix = { .bits = 128 };

		found = bpf_map_lookup_elem(&peers6, addr);
		if (found)
			return found->class;
		__builtin_memcpy(prefix.addr, addr, 16);
		found = bpf_map_lookup_elem(&prefixes6, &prefix);
	} else {
		struct prefix4 prefix = { .bits = 32 };

		found = bpf_map_lookup_elem(&peers4, &addr->word[3]);
		if (found)
			return found->class;
		__builtin_memcpy(prefix.addr, &addr->word[3], 4);
		found = bpf_map_lookup_elem(&prefixes4, &prefix);
	}
	return found ? found->class : 0;
}

/* Returns the class of a destination port. Protocols without ports are class 0. */
static __always_inline __u32 class_of_port(__u8 protocol, __u16 port)
{
	struct port_class *found;
	__u32 index = port;

	switch (protocol) {
	case IPPROTO_TCP:
		break;
	case IPPROTO_UDP:
		index += 65536;
		break;
	case IPPROTO_SCTP:
		index += 2 * 65536;
		break;
	default:
		return 0;
	}
	found = bpf_map_lookup_elem(&ports, &index);
	return found ? found->class : 0;
}

/* A verdict and the number of its cause, in one word. */
#define DECISION(verdict, cause) ((verdict) | (__u32)(cause) << 1)

static __always_inline enum verdict verdict_of(__u32 decision)
{
	return decision & 1;
}

static __always_inline __u32 cause_of(__u32 decision)
{
	return decision >> 1;
}

/* Returns the causes of the verdict that a table has on unlisted classes. The empty asm keeps the
 * compiler from removing the mask, by which the verifier sees that the index is in bounds. */
static __always_inline __u32 default_causes(__u32 table, enum direction dir)
{
	__u32 place = (table >> 2) % TABLE_PLACES, index = dir;
	struct table_cause *found;

	if (!table)
		return CAUSE_PENDING + dir;
	found = bpf_map_lookup_elem(&table_causes, &place);
	asm volatile("" : "+r"(index));
	return found && found->table == table ? found->causes[index & 1] : CAUSE_NONE;
}

/* Returns the cause for a class of ports. No rule is the cause of a class that is closed. */
static __always_inline __u32 cause_of_class(__u32 causes, __u32 class)
{
	__u32 width = (causes & ~CAUSES_BY_PORT) >> CAUSES_WIDTH, place = causes & ((1u << CAUSES_WIDTH) - 1);
	struct cause_block *found;

	if (class == CLOSED_PORTS)
		return CAUSE_NONE;
	if (class / BLOCK_CAUSES >= width)
		class = 0;
	place += class / BLOCK_CAUSES;
	found = bpf_map_lookup_elem(&cause_blocks, &place);
	return found ? found->cause[class % BLOCK_CAUSES] : CAUSE_NONE;
}

/* Returns the decision of a table on a new flow between its pod and a class of addresses. */
static __always_inline __u32 table_verdict(__u32 table, enum direction dir, __u32 peer, __u8 protocol, __u16 port)
{
	struct verdict_key key = { .table = table_number(table), .peer = (peer & ~PEER_POD) * 2 + dir };
	struct verdict_row *found = bpf_map_lookup_elem(&verdicts, &key);
	__u32 causes, class, index;
	struct row *row;

	if (found) {
		index = found->row;
		causes = found->causes;
	} else {
		index = (table >> dir) & 1;
		causes = default_causes(key.table, dir);
	}
	if (index <= ROW_ALLOW && !(causes & CAUSES_BY_PORT))
		return DECISION(index, causes);
	class = class_of_port(protocol, port) % PORT_CLASSES;
	if (index > ROW_ALLOW) {
		row = bpf_map_lookup_elem(&rows, &index);
		if (!row)
			return DECISION(DENY, CAUSE_NONE);
		index = (row->allow[class / 64] >> (class % 64)) & 1;
	}
	if (causes & CAUSES_BY_PORT)
		causes = cause_of_class(causes, class);
	return DECISION(index, causes);
}

/* Returns the current generation of the maps. The kernel may delay a program for long between
 * any two instructions. A verdict is valid if the generation after it equals the generation
 * before its first lookup. Loads before and after the call keep that order. */
static __always_inline __u32 current_generation(void)
{
	__u32 zero = 0, number;
	volatile struct generation *s = bpf_map_lookup_elem(&generation, &zero);

	order_loads();
	number = s ? s->number : 0;
	order_loads();
	return number;
}

/* How often a program evaluates a verdict again before it gives up with DENY. */
#define VERDICT_TRIES 8
