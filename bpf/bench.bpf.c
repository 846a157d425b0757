/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What the programs of pod.bpf.c are measured against: the least that a data
 * path of their kind has to do, and what measuring takes. shuffle gives each packet of a test run another
 * flow and goes on to the program under test, which is one of those below or a
 * real one; its own cost is that of shuffle before empty. Nothing here is used
 * to enforce anything. */

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

/* Flow n of so many goes to 10.128.0.0 + n % addresses, from port 1024 + n /
 * addresses. Set before each run. */
__u32 flows = 1;
__u32 addresses = 1;
__u32 in_order; /* one after the other, to visit all */
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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__type(key, struct conn_key4);
	__type(value, struct conn);
} floor_conns SEC(".maps");

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr ports; /* those of TCP are at the same place */
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

/* One hit in a connection table, time and counts noted. */
static __always_inline void note(struct __sk_buff *skb, const struct headers *h)
{
	struct conn_key4 key = {};
	struct conn *c, fresh = {};

	place(h, &key);
	c = bpf_map_lookup_elem(&floor_conns, &key);
	if (!c) {
		bpf_map_update_elem(&floor_conns, &key, &fresh, BPF_ANY);
		return;
	}
	c->seen = bpf_jiffies64();
	c->sent[0]++;
}

/* The least for an established flow. */
SEC("tc")
int established(struct __sk_buff *skb)
{
	struct headers *h = headers(skb);

	if (!h)
		return TC_ACT_SHOT;
	note(skb, h);
	return TC_ACT_UNSPEC;
}

/* The verdict on a new flow: slot, class of the address, class of the port, one
 * flat hash. */
SEC("tc")
int verdict(struct __sk_buff *skb)
{
	struct headers *h = headers(skb);
	struct floor_verdict_key key = {};
	struct verdict_row *row;
	struct peer_class *peer;
	struct port_class *port;
	struct slot *slot;
	__u32 index = 0;

	if (!h)
		return TC_ACT_SHOT;
	slot = bpf_map_lookup_elem(&floor_slots, &index);
	if (!slot)
		return TC_ACT_SHOT;
	key.table = slot->table;
	peer = bpf_map_lookup_elem(&floor_peers, &h->ip.daddr);
	if (peer)
		key.peer = peer->class * 2 + EGRESS;
	index = bpf_ntohs(h->ports.dest);
	port = bpf_map_lookup_elem(&floor_ports, &index);
	if (port)
		key.port = port->class;
	row = bpf_map_lookup_elem(&floor_verdicts, &key);
	return row && row->row == ROW_ALLOW ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* The next three are for paths between real interfaces. */

/* Frames of a test run with live frames: all headers are written each time,
 * since the pages of frames are used again as the stack left them. */
__u8 injected[64];
__u32 inject_v6;
__u32 inject_answers; /* the port of the flow is that of the destination */

/* Frames on their way: how many have set out and come out, of how many, and
 * when the first and the last did, in ns. A test run itself takes milliseconds
 * before and after them. Counted on one CPU. */
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

/* The end of the way. Other packets are the network's own. */
SEC("tc")
int sink(struct __sk_buff *skb)
{
	if (skb->len == sizeof(injected) && ++sunk == expected)
		ended_at = bpf_ktime_get_ns();
	return TC_ACT_SHOT;
}

/* The shortest way to a pod: into the other end of the pair whose host's end is
 * this one. Set before loading. */
const volatile __u32 bare_target;

SEC("tc")
int bare_peer(struct __sk_buff *skb)
{
	return bpf_redirect_peer(bare_target, 0);
}

/* The same with the least that knows flows; IPv4 only. */
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
