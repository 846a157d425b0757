/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What an uplink need not take in, dropped before the kernel makes a packet of
 * it: everything from sources on the cluster's deny list, and frames whose IP
 * header no stack would accept. All else goes on as if the program was not
 * there. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "include/types.h"
#include "include/deny.h"

/* Tags of VLANs that the device did not take off. */
#define MAX_TAGS 2

struct vlan {
	__be16 tag;
	__be16 protocol;
};

enum xdp_counter {
	XDP_DENIED4 = 0,   /* the source is on the deny list */
	XDP_DENIED6 = 1,
	XDP_MALFORMED = 2, /* no valid IP header */
	XDP_COUNTERS = 3,
};

/* Drops by enum xdp_counter. Written by the program. */
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

/* Headers that are not in the first piece of a frame of several, which few
 * devices make, are copied to see their source, nothing else; or the frame ends
 * before they do. */
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

static __always_inline int filter4(struct xdp_md *ctx, void *at, void *end)
{
	struct iphdr *ip = at;

	if (at + sizeof(*ip) > end)
		return scattered4(ctx, at - (void *)(long)ctx->data);
	if (denied4(ip->saddr))
		return drop(ctx, XDP_DENIED4);
	/* RFC 1122, 3.2.1.1, and what cannot hold the header itself. */
	if (ip->version != 4 || ip->ihl < 5 || bpf_ntohs(ip->tot_len) < ip->ihl * 4)
		return drop(ctx, XDP_MALFORMED);
	return XDP_PASS;
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
	return XDP_PASS;
}

SEC("xdp.frags")
int uplink(struct xdp_md *ctx)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = at;
	struct vlan *vlan;
	__be16 protocol;

	at += sizeof(*eth);
	if (at > end)
		return XDP_PASS; /* not ours to judge */
	protocol = eth->h_proto;
	for (int i = 0; i < MAX_TAGS; i++) {
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		vlan = at;
		at += sizeof(*vlan);
		if (at > end)
			return XDP_PASS;
		protocol = vlan->protocol;
	}
	if (protocol == bpf_htons(ETH_P_IP))
		return filter4(ctx, at, end);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return filter6(ctx, at, end);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
