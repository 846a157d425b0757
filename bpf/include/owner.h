/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "maps.h"
#include "parse.h"

/* Returns the owner (enum owner) of an address on this node, or 0. */
__noinline int owner_of(const struct ip *addr, int v6)
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
