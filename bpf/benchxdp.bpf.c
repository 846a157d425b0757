/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Baselines for the benchmarks of xdp.bpf.c: only the map lookups that its work needs.
 * xdp_shuffle gives each packet of a test run another source, then calls the program under
 * test. Nothing here drops packets in production. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "include/types.h"

/* Packets come from 10.128.0.0 + n % sources. The benchmark sets it before each run. */
__u32 sources = 1;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xdp_target SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr4);
	__type(value, __u32);
} least_denied SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr4);
	__type(value, struct slot_index);
} least_locals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct slot);
} least_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr4);
	__type(value, struct peer_class);
} least_peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3 * 65536);
	__type(key, __u32);
	__type(value, struct port_class);
} least_ports SEC(".maps");

struct least_verdict_key {
	__u32 table;
	__u32 peer;
	__u32 port;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct least_verdict_key);
	__type(value, struct verdict_row);
} least_verdicts SEC(".maps");

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
	struct tcphdr tcp;
} __attribute__((packed));

static __always_inline struct headers *headers(struct xdp_md *ctx)
{
	struct headers *h = (void *)(long)ctx->data;

	return (void *)(h + 1) > (void *)(long)ctx->data_end ? NULL : h;
}

SEC("xdp.frags")
int xdp_shuffle(struct xdp_md *ctx)
{
	struct headers *h = headers(ctx);

	if (!h || !sources)
		return XDP_ABORTED;
	h->ip.saddr = bpf_htonl(0x0a800000 + bpf_get_prandom_u32() % sources);
	bpf_tail_call(ctx, &xdp_target, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int xdp_empty(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* A source on the deny list: one hash lookup. */
SEC("xdp.frags")
int xdp_listed(struct xdp_md *ctx)
{
	struct headers *h = headers(ctx);

	if (!h)
		return XDP_ABORTED;
	return bpf_map_lookup_elem(&least_denied, &h->ip.saddr) ? XDP_DROP : XDP_PASS;
}

/* A new flow to a local pod: slot of the address, table, class of the source, class of the
 * port, and one flat hash. */
SEC("xdp.frags")
int xdp_refused(struct xdp_md *ctx)
{
	struct headers *h = headers(ctx);
	struct least_verdict_key key = {};
	struct slot_index *local;
	struct verdict_row *row;
	struct peer_class *peer;
	struct port_class *port;
	struct slot *slot;
	__u32 index;

	if (!h)
		return XDP_ABORTED;
	local = bpf_map_lookup_elem(&least_locals, &h->ip.daddr);
	if (!local)
		return XDP_PASS;
	slot = bpf_map_lookup_elem(&least_slots, &local->slot);
	if (!slot)
		return XDP_PASS;
	key.table = slot->table;
	peer = bpf_map_lookup_elem(&least_peers, &h->ip.saddr);
	if (peer)
		key.peer = peer->class * 2 + INGRESS;
	index = bpf_ntohs(h->tcp.dest);
	port = bpf_map_lookup_elem(&least_ports, &index);
	if (port)
		key.port = port->class;
	row = bpf_map_lookup_elem(&least_verdicts, &key);
	return row && row->row == ROW_ALLOW ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
