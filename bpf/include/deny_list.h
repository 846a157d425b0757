/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "types.h"

/* The deny list of the cluster: source addresses that uplinks drop. Most addresses are in no
 * list. A prefilter, a bitmap of regions, rules them out before a lookup. It may have false
 * positives, never false negatives. */

/* Bits of an address, or of its hash, that form the number of its region. */
#define REGION_BITS 20

/* Bit n of a word stands for the region whose number modulo 64 is n. */
struct prefilter {
	__u64 singles;  /* deny4 or deny6 may hold addresses of the region */
	__u64 prefixes; /* a prefix in deny_prefixes4 or deny_prefixes6 may overlap the region */
};
_Static_assert(sizeof(struct prefilter) == 16, "shared with user space");

enum deny_action {
	DENY_SOURCE = 0,
	EXEMPT_SOURCE = 1, /* exempt: never denied, even if a prefix contains it */
};

struct deny_entry {
	__u32 action; /* enum deny_action */
};

/* By region / 64. The region is the first 20 bits of an IPv4 address. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << (REGION_BITS - 6));
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct prefilter);
} deny_prefilter4 SEC(".maps");

/* By region / 64. The region is 20 bits of a hash of the first 32 bits of the address. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << (REGION_BITS - 6));
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct prefilter);
} deny_prefilter6 SEC(".maps");

/* Single addresses. An entry here overrides all prefixes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct addr4);
	__type(value, struct deny_entry);
} deny4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct addr6);
	__type(value, struct deny_entry);
} deny6 SEC(".maps");

/* Denied prefixes. A miss passes. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix4);
	__type(value, struct deny_entry);
} deny_prefixes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix6);
	__type(value, struct deny_entry);
} deny_prefixes6 SEC(".maps");

/* Reports whether the deny list contains a source address, in network byte order. */
static __always_inline bool denied4(__be32 src)
{
	__u32 region = bpf_ntohl(src) >> (32 - REGION_BITS), word = region / 64;
	struct prefilter *s = bpf_map_lookup_elem(&deny_prefilter4, &word);
	struct prefix4 prefix = { .bits = 32 };
	struct deny_entry *found;
	__u64 bit = 1ULL << (region % 64);

	if (!s)
		return false;
	if (s->singles & bit) {
		found = bpf_map_lookup_elem(&deny4, &src);
		if (found)
			return found->action == DENY_SOURCE;
	}
	if (!(s->prefixes & bit))
		return false;
	__builtin_memcpy(prefix.addr, &src, 4);
	return bpf_map_lookup_elem(&deny_prefixes4, &prefix);
}

static __always_inline bool denied6(const __be32 *src)
{
	/* Multiplying by 2^32 divided by the golden ratio spreads adjacent prefixes. */
	__u32 region = bpf_ntohl(src[0]) * 0x9e3779b1U >> (32 - REGION_BITS), word = region / 64;
	struct prefilter *s = bpf_map_lookup_elem(&deny_prefilter6, &word);
	struct prefix6 prefix = { .bits = 128 };
	struct deny_entry *found;
	__u64 bit = 1ULL << (region % 64);

	if (!s)
		return false;
	__builtin_memcpy(prefix.addr, src, 16);
	if (s->singles & bit) {
		found = bpf_map_lookup_elem(&deny6, prefix.addr);
		if (found)
			return found->action == DENY_SOURCE;
	}
	if (!(s->prefixes & bit))
		return false;
	return bpf_map_lookup_elem(&deny_prefixes6, &prefix);
}
