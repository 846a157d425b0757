/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Baselines for the benchmarks of pod.bpf.c: the minimum work of such a data path, and the
 * overhead of measuring. shuffle gives each packet of a test run another flow, then calls the
 * program under test, which is one of these or a production program. shuffle before empty
 * measures the overhead of shuffle. Nothing here enforces policy. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "include/types.h"

/* Flow n modulo flows goes to 10.128.0.0 + n % addresses, from port 1024 + n / addresses. The
 * benchmark sets both before each run. */
__u32 flows = 1;
__u32 addresses = 1;
__u32 in_order; /* visit the flows in order, so that each one occurs */
__u32 next_flow;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} target SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct slot);
} floor_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr4);
	__type(value, struct peer_class);
} floor_peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3 * 65536);
	__type(key, __u32);
	__type(value, struct port_class);
} floor_ports SEC(".maps");

struct floor_verdict_key {
	__u32 table;
	__u32 peer;
	__u32 port;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct floor_verdict_key);
	__type(value, struct verdict_row);
} floor_verdicts SEC(".maps");

/* A flow of the least programs: as large as the state of a flow must be. */
struct floor_conn {
	__u32 seen;
	__u32 sent[2];
	__u32 rest[21];
};
_Static_assert(sizeof(struct floor_conn) == 96, "layout");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__type(key, struct conn_key4);
	__type(value, struct floor_conn);
} floor_conns SEC(".maps");

/* The keys of floor_conns by index, and the number of entries of each slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 131072);
	__type(key, __u32);
	__type(value, struct conn_key4);
} floor_ledger SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct flow_share);
} floor_shares SEC(".maps");

/* The number of indexes of floor_ledger that were used. */
__u64 floor_hand;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct counter);
} floor_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct verdict_count);
} floor_verdict_counts SEC(".maps");

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr ports; /* TCP has its ports at the same offset */
} __attribute__((packed));

static __always_inline struct headers *headers(struct __sk_buff *skb)
{
	struct headers *h = (void *)(long)skb->data;

	return (void *)(h + 1) > (void *)(long)skb->data_end ? NULL : h;
}

SEC("tc")
int shuffle(struct __sk_buff *skb)
{
	struct headers *h = headers(skb);
	__u32 n;

	if (!h || !flows || !addresses)
		return TC_ACT_SHOT;
	n = in_order ? next_flow++ : bpf_get_prandom_u32();
	n %= flows;
	h->ip.daddr = bpf_htonl(0x0a800000 + n % addresses);
	h->ports.source = bpf_htons(1024 + n / addresses);
	bpf_tail_call(skb, &target, 0);
	return TC_ACT_SHOT;
}

SEC("tc")
int empty(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

static __always_inline void place(const struct headers *h, struct conn_key4 *key)
{
	__builtin_memcpy(key->addr[0], &h->ip.saddr, 4);
	__builtin_memcpy(key->addr[1], &h->ip.daddr, 4);
	key->port[0] = bpf_ntohs(h->ports.source);
	key->port[1] = bpf_ntohs(h->ports.dest);
	key->protocol = h->ip.protocol;
}

/* Does one lookup in a connection table and updates time and counts. */
static __always_inline void note(struct __sk_buff *skb, const struct headers *h)
{
	struct conn_key4 key = {};
	struct floor_conn *c, fresh = {};

	place(h, &key);
	c = bpf_map_lookup_elem(&floor_conns, &key);
	if (!c) {
		bpf_map_update_elem(&floor_conns, &key, &fresh, BPF_ANY);
		return;
	}
	c->seen = bpf_jiffies64();
	c->sent[0]++;
}

/* The minimum work for an established flow. */
SEC("tc")
int established(struct __sk_buff *skb)
{
	struct headers *h = headers(skb);

	if (!h)
		return TC_ACT_SHOT;
	note(skb, h);
	return TC_ACT_UNSPEC;
}

/* Returns the row of a new flow: slot, class of the address, class of the port, and one flat
 * hash. */
static __always_inline struct verdict_row *row_of(const struct headers *h)
{
	struct floor_verdict_key key = {};
	struct peer_class *peer;
	struct port_class *port;
	struct slot *slot;
	__u32 index = 0;

	slot = bpf_map_lookup_elem(&floor_slots, &index);
	if (!slot)
		return NULL;
	key.table = slot->table;
	peer = bpf_map_lookup_elem(&floor_peers, &h->ip.daddr);
	if (peer)
		key.peer = peer->class * 2 + EGRESS;
	index = bpf_ntohs(h->ports.dest);
	port = bpf_map_lookup_elem(&floor_ports, &index);
	if (port)
		key.port = port->class;
	return bpf_map_lookup_elem(&floor_verdicts, &key);
}

/* Counts a verdict for the node and for the pod. */
static __always_inline void count_verdict(struct __sk_buff *skb, __u32 verdict)
{
	__u32 zero = 0;
	struct counter *node = bpf_map_lookup_elem(&floor_counters, &verdict);
	struct verdict_count *pod = bpf_map_lookup_elem(&floor_verdict_counts, &zero);

	if (!node || !pod)
		return;
	node->packets++;
	node->bytes += skb->len;
	pod->flows[verdict & 1]++;
}

/* The minimum work for the verdict on a new flow and its counts. */
SEC("tc")
int verdict(struct __sk_buff *skb)
{
	struct headers *h = headers(skb);
	struct verdict_row *row = h ? row_of(h) : NULL;
	bool allowed = row && row->row == ROW_ALLOW;

	count_verdict(skb, allowed);
	return allowed ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* The minimum work for a new flow that policy allows, in a full flow table: the verdict and its
 * counts, a lookup of the flow, the removal of the oldest flow, and the new entry. */
SEC("tc")
int opened(struct __sk_buff *skb)
{
	struct headers *h = headers(skb);
	struct conn_key4 key = {}, *oldest;
	struct flow_share *share;
	struct floor_conn fresh = {};
	__u32 index, zero = 0;

	if (!h || !row_of(h))
		return TC_ACT_SHOT;
	count_verdict(skb, ALLOW);
	place(h, &key);
	if (bpf_map_lookup_elem(&floor_conns, &key))
		return TC_ACT_UNSPEC;
	index = __sync_fetch_and_add(&floor_hand, 1) % 131072;
	oldest = bpf_map_lookup_elem(&floor_ledger, &index);
	share = bpf_map_lookup_elem(&floor_shares, &zero);
	if (!oldest || !share)
		return TC_ACT_SHOT;
	if (!bpf_map_delete_elem(&floor_conns, oldest))
		__sync_fetch_and_add(&share->flows[0], -1);
	*oldest = key;
	fresh.seen = bpf_jiffies64();
	if (!bpf_map_update_elem(&floor_conns, &key, &fresh, BPF_NOEXIST))
		__sync_fetch_and_add(&share->flows[0], 1);
	return TC_ACT_UNSPEC;
}

/* The next three programs serve paths between real interfaces. */

/* Writes all headers of each frame in a test run with live frames. The kernel reuses the pages
 * of frames as the host stack left them. */
__u8 injected[64];
__u32 inject_v6;
__u32 inject_answers; /* the port that identifies the flow is the destination port */

/* Frames in flight: the number sent and received, the total, and the times of the first and the
 * last one, in ns. A test run takes milliseconds before and after them. All run on one CPU. */
__u64 begun;
__u64 sunk;
__u64 expected;
__u64 began_at;
__u64 ended_at;

SEC("xdp")
int inject(struct xdp_md *ctx)
{
	__u8 *frame = (void *)(long)ctx->data;
	__u32 n = in_order ? next_flow++ : bpf_get_prandom_u32();
	__be16 port;

	if (frame + sizeof(injected) > (__u8 *)(long)ctx->data_end || !flows)
		return XDP_ABORTED;
	if (!begun++)
		began_at = bpf_ktime_get_ns();
	__builtin_memcpy(frame, injected, sizeof(injected));
	frame += sizeof(struct ethhdr) + (inject_v6 ? 40 : sizeof(struct iphdr)) + (inject_answers ? 2 : 0);
	port = bpf_htons(1024 + n % flows);
	__builtin_memcpy(frame, &port, 2);
	return XDP_PASS;
}

/* The receiver at the end of the path. It passes packets that are not of the benchmark. */
SEC("tc")
int sink(struct __sk_buff *skb)
{
	if (skb->len == sizeof(injected) && ++sunk == expected)
		ended_at = bpf_ktime_get_ns();
	return TC_ACT_SHOT;
}

/* The shortest path to a pod: a redirect into the peer of this host interface. Set before
 * loading. */
const volatile __u32 bare_target;

SEC("tc")
int bare_peer(struct __sk_buff *skb)
{
	return bpf_redirect_peer(bare_target, 0);
}

/* The same with the minimum of flow tracking; IPv4 only. */
SEC("tc")
int least_peer(struct __sk_buff *skb)
{
	struct headers *h = headers(skb);

	if (!h || skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	note(skb, h);
	return bpf_redirect_peer(bare_target, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
