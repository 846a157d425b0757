/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "maps.h"
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

/* Returns the verdict of a table on a new flow between its pod and a class of addresses. */
static __always_inline __u8 table_verdict(__u32 table, enum direction dir, __u32 peer, __u8 protocol, __u16 port)
{
	struct verdict_key key = { .table = table_number(table), .peer = (peer & ~PEER_POD) * 2 + dir };
	struct verdict_row *found = bpf_map_lookup_elem(&verdicts, &key);
	__u32 class, index;
	struct row *row;

	if (!found)
		return (table >> dir) & 1;
	index = found->row;
	if (index <= ROW_ALLOW)
		return index;
	row = bpf_map_lookup_elem(&rows, &index);
	if (!row)
		return DENY;
	class = class_of_port(protocol, port) % PORT_CLASSES;
	return (row->allow[class / 64] >> (class % 64)) & 1;
}

/* Returns the current generation of the maps. The kernel may delay a program for long between
 * any two instructions. A verdict is valid if the generation after it equals the generation
 * before its first lookup. */
static __always_inline __u32 current_generation(void)
{
	__u32 zero = 0;
	volatile struct generation *s = bpf_map_lookup_elem(&generation, &zero);

	return s ? s->number : 0;
}

/* How often a program evaluates a verdict again before it gives up with DENY. */
#define VERDICT_TRIES 8
