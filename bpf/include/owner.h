/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "maps.h"
#include "parse.h"

/* Returns the entry (enum owner, with flags) of an address in the maps of owners, or 0. */
__noinline int owner_entry_of(const struct ip *addr, int v6)
{
	struct owner_entry *found;
	struct prefix6 prefix;

	if (!addr)
		return 0;
	if (v6) {
		prefix.bits = 128;
		__builtin_memcpy(prefix.addr, addr, 16);
		found = bpf_map_lookup_elem(&owners6, &prefix);
	} else {
		prefix.bits = 32;
		__builtin_memcpy(prefix.addr, &addr->word[3], 4);
		found = bpf_map_lookup_elem(&owners4, &prefix);
	}
	return found ? found->owner : 0;
}

/* Returns the owner of an address on this node, or 0. */
static __always_inline int owner_of(const struct ip *addr, int v6)
{
	return owner_entry_of(addr, v6) & OWNER_MASK;
}

/* Reports whether this node receives packets to a broadcast or anycast address. Policy names the node by its
 * other addresses. */
static __always_inline bool is_broadcast(const struct ip *addr, int v6)
{
	return owner_entry_of(addr, v6) & OWNER_BROADCAST;
}
