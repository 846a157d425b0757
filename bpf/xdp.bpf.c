/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Drops packets at uplinks before the kernel allocates an skb. It drops packets from sources on
 * the deny list of the cluster, and frames with an IP header that every host stack rejects. It
 * also drops packets that open a flow to a local pod whose table certainly denies it. All other
 * packets continue unchanged. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "include/types.h"
#include "include/maps.h"
#include "include/parse.h"
#include "include/policy.h"
#include "include/deny_list.h"
#include "include/events.h"

/* The maximum number of VLAN tags that the device left in a frame. */
#define MAX_TAGS 2

struct vlan {
	__be16 tag;
	__be16 protocol;
};

enum xdp_counter {
	XDP_DENIED4 = 0,   /* the source is on the deny list */
	XDP_DENIED6 = 1,
	XDP_MALFORMED = 2, /* headers that do not fit the frame, or too many VLAN tags */
	XDP_COUNTERS = 3,
};

/* Drops by enum xdp_counter. The program writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XDP_COUNTERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct counter);
} xdp_counters SEC(".maps");

static __always_inline int drop(struct xdp_md *ctx, __u32 reason)
{
	struct counter *c = bpf_map_lookup_elem(&xdp_counters, &reason);

	if (c) {
		c->packets++;
		c->bytes += ctx->data_end - ctx->data;
	}
	return XDP_DROP;
}

/* Handles frames whose first fragment does not contain the IP header; few devices make them.
 * The program copies the header and checks only the source. It drops frames that end within the
 * header. */
static __always_inline int scattered4(struct xdp_md *ctx, __u32 offset)
{
	struct iphdr ip;

	if (bpf_xdp_load_bytes(ctx, offset, &ip, sizeof(ip)))
		return drop(ctx, XDP_MALFORMED);
	return denied4(ip.saddr) ? drop(ctx, XDP_DENIED4) : XDP_PASS;
}

static __always_inline int scattered6(struct xdp_md *ctx, __u32 offset)
{
	struct ipv6hdr ip;

	if (bpf_xdp_load_bytes(ctx, offset, &ip, sizeof(ip)))
		return drop(ctx, XDP_MALFORMED);
	return denied6(ip.saddr.s6_addr32) ? drop(ctx, XDP_DENIED6) : XDP_PASS;
}

/* Reports whether a packet may open a flow. Other protocols do not mark the first packet. Such
 * a packet may belong to a flow that a pod opened to a Service, and the host stack has not
 * reversed the DNAT yet. */
static __always_inline bool may_open(__u8 protocol, void *at, void *end)
{
	struct tcphdr *tcp = at;
	struct icmp_header *icmp = at;

	switch (protocol) {
	case IPPROTO_TCP:
		return at + sizeof(*tcp) > end || (tcp->syn && !tcp->ack);
	case IPPROTO_ICMP:
		return at + sizeof(*icmp) > end || icmp->type == ICMP4_ECHO_REQUEST;
	case IPPROTO_ICMPV6:
		return at + sizeof(*icmp) > end || icmp->type == ICMP6_ECHO_REQUEST;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_DSTOPTS:
	case IPPROTO_AH:
		return true; /* in IPv6; for IPv4, parse_ip4 finds that the packet opens no flow */
	}
	return false;
}

/* Counts a denied flow and emits its event, as to_pod does. */
static __always_inline int reject(struct xdp_md *ctx, const struct packet *p, __u32 index, const struct slot *slot, __u32 cause)
{
	__u32 id = COUNT_INGRESS_DENY;

	if (event_rate && count_limited(&index, INGRESS, cause))
		return XDP_DROP;
	count_verdict(index, id, cause);
	emit_event(&p->flow, index, slot, EVENT(id, p->v6 ? EVENT_V6 : 0, p->icmp), NULL);
	return XDP_DROP;
}

/* Bounds the offset of an IP header, which follows an Ethernet header and up to MAX_TAGS tags. */
#define START_MASK 31
_Static_assert(sizeof(struct ethhdr) + MAX_TAGS * sizeof(struct vlan) <= START_MASK, "masked offsets stay what they are");

/* Decides a packet that may open a flow to a pod of this node, by the table of the pod, as
 * to_pod does. start is the offset of its IP header, which is complete. A global function, so
 * that the verifier checks the parser once and not for each number of tags. */
__noinline int decide_local(struct xdp_md *ctx, __u32 start, int v6)
{
	struct cursor c = { .pos = (void *)(long)ctx->data + (start & START_MASK), .end = (void *)(long)ctx->data_end };
	struct packet p = { .v6 = v6 };
	struct slot_index *local;
	struct ipv6hdr *ip6 = c.pos;
	struct iphdr *ip4 = c.pos;
	struct slot slot;
	__u32 generation, decision;
	__u64 *word;
	enum outcome act;

	if (c.pos + (v6 ? sizeof(*ip6) : sizeof(*ip4)) > c.end)
		return XDP_PASS;
	local = v6 ? bpf_map_lookup_elem(&locals6, &ip6->daddr) : bpf_map_lookup_elem(&locals4, &ip4->daddr);
	if (!local)
		return XDP_PASS;
	act = v6 ? parse_ip6(&c, &p) : parse_ip4(&c, &p);
	if (act) /* the next fragment of a multi-buffer frame may hold the rest */
		return act == DROP_MALFORMED && bpf_xdp_get_buff_len(ctx) == ctx->data_end - ctx->data ?
			drop(ctx, XDP_MALFORMED) :
			XDP_PASS;
	if (p.kind != PACKET_OPENS)
		return XDP_PASS;
	generation = current_generation();
	word = bpf_map_lookup_elem(&slots, &local->slot);
	if (!word)
		return XDP_PASS;
	*(__u64 *)&slot = *(volatile __u64 *)word;
	if (slot.table & TABLE_OBSERVED) /* to_pod reports what policy would drop */
		return XDP_PASS;
	decision = table_verdict(slot.table, INGRESS, class_of(&p.flow.src, v6), p.flow.protocol, p.flow.dst_port);
	if (verdict_of(decision) == ALLOW || current_generation() != generation) /* to_pod will decide */
		return XDP_PASS;
	return reject(ctx, &p, local->slot, &slot, cause_of(decision));
}

static __always_inline int filter4(struct xdp_md *ctx, void *at, void *end)
{
	struct iphdr *ip = at;

	if (at + sizeof(*ip) > end)
		return scattered4(ctx, at - (void *)(long)ctx->data);
	if (denied4(ip->saddr))
		return drop(ctx, XDP_DENIED4);
	/* RFC 1122, 3.2.1.1; and a total length that cannot hold the header. */
	if (ip->version != 4 || ip->ihl < 5 || bpf_ntohs(ip->tot_len) < ip->ihl * 4)
		return drop(ctx, XDP_MALFORMED);
	if (ip->frag_off & bpf_htons(IP_OFFSET) || !may_open(ip->protocol, at + ip->ihl * 4, end))
		return XDP_PASS;
	return decide_local(ctx, at - (void *)(long)ctx->data, false);
}

static __always_inline int filter6(struct xdp_md *ctx, void *at, void *end)
{
	struct ipv6hdr *ip = at;

	if (at + sizeof(*ip) > end)
		return scattered6(ctx, at - (void *)(long)ctx->data);
	if (denied6(ip->saddr.s6_addr32))
		return drop(ctx, XDP_DENIED6);
	if (ip->version != 6)
		return drop(ctx, XDP_MALFORMED);
	if (!may_open(ip->nexthdr, at + sizeof(*ip), end))
		return XDP_PASS;
	return decide_local(ctx, at - (void *)(long)ctx->data, true);
}

/* Reports whether a protocol is that of a VLAN tag. */
static __always_inline bool is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* Returns the protocol after the VLAN tags, or 0, and moves at past them. */
static __always_inline __be16 untag(__be16 protocol, void **at, void *end)
{
	struct vlan *vlan;

	for (int i = 0; i < MAX_TAGS; i++) {
		if (!is_tag(protocol))
			break;
		vlan = *at;
		*at += sizeof(*vlan);
		if (*at > end)
			return 0;
		protocol = vlan->protocol;
	}
	return protocol;
}

SEC("xdp.frags")
int uplink(struct xdp_md *ctx)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = at;
	__be16 protocol;

	at += sizeof(*eth);
	if (at > end)
		return XDP_PASS; /* too short to decide */
	protocol = eth->h_proto;
	if (protocol != bpf_htons(ETH_P_IP) && protocol != bpf_htons(ETH_P_IPV6))
		protocol = untag(protocol, &at, end);
	if (protocol == bpf_htons(ETH_P_IP))
		return filter4(ctx, at, end);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return filter6(ctx, at, end);
	/* The kernel removes any number of tags that name no VLAN (priority tags), and then reads the IP header. */
	return is_tag(protocol) ? drop(ctx, XDP_MALFORMED) : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
