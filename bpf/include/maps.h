/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "types.h"

/* All maps are pinned by name. Unless said otherwise only the agent writes.
 * max_entries of the tables below are defaults that the loader may change. */

/* Attachment of each interface. A miss drops the packet. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct ifindex);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/* The same of most interfaces, by the lowest bits of the index. What has the index
 * of another interface, or none, says nothing: endpoints does. The agent gives no
 * interface the place of one that lives, and writes the index last. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, INTERFACES);
	__uint(map_flags, BPF_F_MMAPABLE); /* and so in whole cache lines */
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct interface);
} interfaces SEC(".maps");

/* Table of each endpoint, by endpoint.slot. Zero is table 0, which denies. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* Changes with every stage of writing to the maps that verdicts are made of. A
 * verdict that was not made within one stage is void: what it was made of may
 * have been taken apart meanwhile. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct stage);
} stages SEC(".maps");

/* Slot of each local pod, by address. On a miss the address is not local. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct addr4);
	__type(value, struct slot_index);
} locals4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct addr6);
	__type(value, struct slot_index);
} locals6 SEC(".maps");

/* Interface of each slot's pod. Interface 0 drops the packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct attachment);
} attachments SEC(".maps");

/* Pod ranges of other nodes, and the device by which their packets come and go. A
 * miss is no such range. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix4);
	__type(value, struct way);
} ways4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix6);
	__type(value, struct way);
} ways6 SEC(".maps");

/* Class of single addresses: pods and nodes. On a miss the prefixes decide. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct addr4);
	__type(value, struct peer_class);
} peers4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct addr6);
	__type(value, struct peer_class);
} peers6 SEC(".maps");

/* Class of the addresses in a prefix that rules name or pods are in. A miss is
 * class 0, the rest of the world. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix4);
	__type(value, struct peer_class);
} prefixes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix6);
	__type(value, struct peer_class);
} prefixes6 SEC(".maps");

/* Class of each port: 65536 entries for TCP, then UDP, then SCTP. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3 * 65536);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct port_class);
} ports SEC(".maps");

/* Row of each (table, class of peers, direction). On a miss the table number
 * itself holds the verdict. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct verdict_key);
	__type(value, struct verdict_row);
} verdicts SEC(".maps");

/* Rows that tell ports apart; shared by all tables. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8192);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

/* Identity of each table in use. Programs do not read it: it lets a restarted
 * agent, and people, know what a table number means. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct table_number);
	__type(value, struct table_id);
} tables SEC(".maps");

/* Flows that policy has decided on. Written by the programs, which make room by
 * ledger4 and ledger6 (see ledger.h). A miss is a new flow. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct conn_key4);
	__type(value, struct conn);
} conns4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct conn_key6);
	__type(value, struct conn);
} conns6 SEC(".maps");

/* The keys of conns4 and conns6, each at the place where its entry was made; as
 * many as these hold. A key without an entry is a free place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 131072);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct conn_key4);
} ledger4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct conn_key6);
} ledger6 SEC(".maps");

/* How many places of ledger4 and ledger6 were ever looked at. */
struct ledger_hand {
	__u64 looked[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct ledger_hand);
} ledger_hands SEC(".maps");

/* Entries of conns4 and conns6, by the slot that they were made for. Written by
 * the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct flow_share);
} flow_shares SEC(".maps");

/* Ports of fragmented datagrams: DATAGRAMS places for each slot and direction.
 * Written by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS * 2 * DATAGRAMS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct datagram);
} datagrams SEC(".maps");

/* Whose addresses are on this node: those of its interfaces, and its pods'. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix4);
	__type(value, struct owner_entry);
} owners4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix6);
	__type(value, struct owner_entry);
} owners6 SEC(".maps");

/* Totals by enum counter_id. Written by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

/* The attachment of an interface, or NULL. */
static __always_inline const struct endpoint *find_endpoint(__u32 ifindex)
{
	__u32 place = ifindex % INTERFACES;
	struct ifindex key = { .ifindex = ifindex };
	struct interface *i = bpf_map_lookup_elem(&interfaces, &place);

	if (i && i->ifindex == ifindex)
		return &i->endpoint;
	return bpf_map_lookup_elem(&endpoints, &key);
}

static __always_inline void count_bytes(__u32 bytes, __u32 id)
{
	struct counter *c = bpf_map_lookup_elem(&counters, &id);

	if (c) {
		c->packets++;
		c->bytes += bytes;
	}
}

static __always_inline void count(struct __sk_buff *skb, __u32 id)
{
	count_bytes(skb->len, id);
}
