/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "types.h"
#include "order.h"

/* All maps are pinned by name. Only the agent writes a map, unless its comment says otherwise.
 * max_entries are defaults that the loader may change. */

/* The attachment of each interface. A miss drops the packet. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct ifindex);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/* A direct-mapped copy of endpoints, indexed by the low bits of the interface index. If an
 * entry holds another ifindex or none, endpoints has the answer. The agent never gives one
 * interface the entry of another that exists, and writes the ifindex last. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, INTERFACES);
	__uint(map_flags, BPF_F_MMAPABLE); /* mmapable arrays are page-aligned, so an entry is
					    * one cache line */
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct interface);
} interfaces SEC(".maps");

/* The table of each endpoint, by endpoint.slot. Zero is table 0, which denies all. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* The generation of the maps that verdicts read; it changes with each step of a change. A
 * program discards a verdict if the generation changed meanwhile, because the entries it read
 * may have a new meaning. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct generation);
} generation SEC(".maps");

/* The slot of each local pod, by address. A miss means that the address is not local. On nodes
 * where another CNI plugin makes the interfaces: only the further addresses of pods, besides
 * those in endpoints. */
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

/* The interface of the pod in each slot. Interface 0 drops the packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct attachment);
} attachments SEC(".maps");

/* The pod ranges of other nodes, and the device that leads to them. Packets from them arrive by
 * the same device. A miss means that the address is in no such range. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix4);
	__type(value, struct node_route);
} node_routes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix6);
	__type(value, struct node_route);
} node_routes6 SEC(".maps");

/* The kinds of tunneled packets that devices of this node receive, and one such device. The nodes of a
 * network have the same. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TUNNEL_KINDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct tunnel_kind);
	__type(value, struct ifindex);
} tunnel_kinds SEC(".maps");

/* The peer class of single addresses: pods and nodes. After a miss, prefixes4 or prefixes6
 * decides. */
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

/* The peer class of the addresses in a prefix that a rule names or that contains pods. A miss
 * is class 0, all other addresses. */
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

/* The class of each port: 65536 entries for TCP, then UDP, then SCTP. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3 * 65536);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct port_class);
} ports SEC(".maps");

/* The row for each table, peer class and direction. After a miss, bits 0 and 1 of the table
 * number hold the verdict. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct verdict_key);
	__type(value, struct verdict_row);
} verdicts SEC(".maps");

/* Rows whose verdict depends on the port. All tables share them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8192);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

/* The causes of verdicts by default, by place of the table. The table number there must be that of
 * the verdict; otherwise the cause is not known. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TABLE_PLACES);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct table_cause);
} table_causes SEC(".maps");

/* The causes of rows by port class. All tables share them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CAUSE_BLOCKS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct cause_block);
} cause_blocks SEC(".maps");

/* The meaning of each number of a cause, for the agent and for people. Programs do not read it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CAUSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct cause_key);
	__type(value, struct cause);
} causes SEC(".maps");

/* The identity of each table in use. Programs do not read it. A restarted agent reads it, and
 * so do operators who want to know what a table number means. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct table_number);
	__type(value, struct table_id);
} tables SEC(".maps");

/* The flow table: flows that policy has evaluated. The programs write it (see conntrack.h) and
 * evict flows from it (see ledger.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct conn_entry4);
} conns4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct conn_entry6);
} conns6 SEC(".maps");

/* The index of each flow in conns4 and conns6. A miss means a new flow. The programs write it.
 * These maps and the next two are as large as conns4 and conns6. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct conn_key4);
	__type(value, struct conn_index);
} conn_index4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct conn_key6);
	__type(value, struct conn_index);
} conn_index6 SEC(".maps");

/* The index of the flow that was found last, by a hash of its key. The programs write it. It
 * saves the lookup in conn_index4 or conn_index6 if the entry there has the key of the packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 131072);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct conn_hint);
} conn_hints4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct conn_hint);
} conn_hints6 SEC(".maps");

/* The number of entries of conns4 and conns6 that programs have examined so far. */
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

/* The number of entries of conns4 and conns6, by the slot that caused them. The programs write
 * it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct flow_share);
} flow_shares SEC(".maps");

/* The ports of fragmented datagrams: DATAGRAMS entries for each slot and direction. The
 * programs write it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS * 2 * DATAGRAMS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct datagram);
} datagrams SEC(".maps");

/* The owner of the addresses on this node: those of its interfaces and of its pods. */
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

/* Packets and bytes by enum counter_id. The programs write it, except the first four: there the agent
 * adds what cause_counts had for numbers that got another meaning. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

/* Verdicts on new flows by slot. The programs write it; the agent sets the entry of a slot to
 * zero before it gives the slot to a pod. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct verdict_count);
} verdict_counts SEC(".maps");

/* New flows by the number of the cause that decided them. The verdicts of the node are their sum by
 * direction and verdict. The programs write it; the agent sets a counter to zero before its number
 * gets another meaning. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CAUSES);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct cause_count);
} cause_counts SEC(".maps");

/* Returns the attachment of an interface, or NULL. */
static __always_inline const struct endpoint *find_endpoint(__u32 ifindex)
{
	__u32 place = ifindex % INTERFACES;
	struct ifindex key = { .ifindex = ifindex };
	struct interface *i = bpf_map_lookup_elem(&interfaces, &place);
	__u64 other = 1;

	if (i) {
		other = *(volatile __u32 *)&i->ifindex ^ ifindex;
		asm volatile("" : "+r"(other)); /* or the compiler adds a constant below */
	}
	if (i && !other) /* the agent wrote the endpoint before the index */
		return after_load(&i->endpoint, other);
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

/* Counts a verdict on a new flow for its cause. */
static __always_inline void count_cause(__u32 id, __u32 cause)
{
	struct cause_count *decided;

	if (cause == CAUSE_NONE)
		cause = CAUSE_OTHER + (id & 3);
	decided = bpf_map_lookup_elem(&cause_counts, &cause);
	if (decided)
		decided->flows++;
}

/* Counts a verdict on a new flow for the pod of a slot and for its cause. The empty asm keeps the
 * compiler from removing the mask: the verifier of Linux 6.1 needs it to see that the index is in
 * bounds. */
static __always_inline void count_verdict(__u32 slot, __u32 id, __u32 cause)
{
	struct verdict_count *c = bpf_map_lookup_elem(&verdict_counts, &slot);

	asm volatile("" : "+r"(id));
	if (c)
		c->flows[id & 3]++;
	count_cause(id, cause);
}
