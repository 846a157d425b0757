/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/udp.h>
#include <stdbool.h>
#include "pod_context.h"
#include "nf_conntrack.h"
#include "post_dnat.h"

/* Fast-path flows between a pod of this node and a pod of another node. The functions here
 * check whether a flow may bypass the host stack, and forward its packets. */

/* Whether such flows exist at all. The agent writes this variable. */
volatile __u32 forward_direct;

#define AF_INET 2
#define AF_INET6 10
#define IP6_FLOWINFO 0x0fffffff

/* Returns the node route of an address in the pod range of another node, or NULL. */
static __always_inline struct node_route *find_node_route(const struct ip *addr, bool v6)
{
	struct prefix6 prefix;

	if (v6) {
		prefix.bits = 128;
		__builtin_memcpy(prefix.addr, addr, 16);
		return bpf_map_lookup_elem(&node_routes6, &prefix);
	}
	prefix.bits = 32;
	__builtin_memcpy(prefix.addr, &addr->word[3], 4);
	return bpf_map_lookup_elem(&node_routes4, &prefix);
}

/* Returns the device that leads to an address, if packets may use the fast path; otherwise 0. */
static __always_inline __u32 fast_path_device(const struct ip *addr, bool v6)
{
	struct node_route *found = find_node_route(addr, v6);

	return found && found->fast_path ? found->ifindex : 0;
}

/* Reports whether a packet can be forwarded without change. Its frame must be untagged and
 * addressed to this host. The packet must have a hop limit above 1, and no options, extension
 * headers or fragments. */
static __always_inline bool forwardable(struct __sk_buff *skb, bool v6)
{
	void *at = (void *)(long)skb->data + sizeof(struct ethhdr), *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip6 = at;
	struct iphdr *ip4 = at;

	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return false;
	if (v6)
		return at + sizeof(*ip6) <= end && ip6->hop_limit > 1 &&
			(ip6->nexthdr == IPPROTO_TCP || ip6->nexthdr == IPPROTO_UDP || ip6->nexthdr == IPPROTO_ICMPV6);
	return at + sizeof(*ip4) <= end && ip4->ttl > 1 && *(__u8 *)at == 0x45 &&
		!(ip4->frag_off & bpf_htons(IP_OFFSET | IP_MORE_FRAGMENTS));
}

/* Returns the length of the largest packet on the wire after segmentation. */
static __always_inline __u32 wire_length(struct __sk_buff *skb, const struct packet *p)
{
	__u32 headers = p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	void *at = (void *)(long)skb->data + sizeof(struct ethhdr) + headers, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp = at;

	if (!skb->gso_size)
		return skb->len - sizeof(struct ethhdr);
	if (p->flow.protocol != IPPROTO_TCP)
		headers += sizeof(struct udphdr);
	else if ((void *)(tcp + 1) <= end)
		headers += tcp->doff * 4;
	else
		headers += 60;
	return headers + skb->gso_size;
}

/* Returns the device by which the host stack would forward a packet that arrives by ifindex, or
 * its answer with back. Returns 0 if the packet needs more than forwarding to a neighbour. The
 * kernel resolves the neighbour when it sends. */
__noinline int route_device(struct __sk_buff *skb, const struct packet *p, int ifindex, int back)
{
	struct bpf_fib_lookup fib = {};
	const struct flow *f;
	__u32 length;
	long err;

	if (!p || !forwardable(skb, p->v6))
		return 0;
	f = &p->flow;
	length = back ? sizeof(struct ipv6hdr) : wire_length(skb, p);
	if (length > 0xffff)
		return 0;
	fib.ifindex = ifindex;
	fib.tot_len = length;
	fib.l4_protocol = f->protocol;
	fib.sport = bpf_htons(back ? f->dst_port : f->src_port);
	fib.dport = bpf_htons(back ? f->src_port : f->dst_port);
	if (p->v6) {
		void *at = (void *)(long)skb->data + sizeof(struct ethhdr);

		if (at + 4 > (void *)(long)skb->data_end)
			return 0;
		fib.family = AF_INET6;
		fib.flowinfo = *(__be32 *)at & bpf_htonl(IP6_FLOWINFO);
		__builtin_memcpy(fib.ipv6_src, back ? &f->dst : &f->src, 16);
		__builtin_memcpy(fib.ipv6_dst, back ? &f->src : &f->dst, 16);
	} else {
		struct iphdr *ip = (void *)(long)skb->data + sizeof(struct ethhdr);

		if ((void *)(ip + 1) > (void *)(long)skb->data_end)
			return 0;
		fib.family = AF_INET;
		fib.tos = ip->tos;
		fib.ipv4_src = back ? f->dst.word[3] : f->src.word[3];
		fib.ipv4_dst = back ? f->src.word[3] : f->dst.word[3];
	}
	err = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	return err == BPF_FIB_LKUP_RET_SUCCESS || err == BPF_FIB_LKUP_RET_NO_NEIGH ? fib.ifindex : 0;
}

/* Reports whether a packet of an unknown flow may open a fast-path flow between a pod of this
 * node, at interface ifindex, and a remote address. The remote address must be in the pod range
 * of another node, and the route must use the device of that node route. Connection tracking
 * must not know the flow. */
__noinline int may_open_remote(struct __sk_buff *skb, const struct packet *p, const struct ip *remote, int ifindex, __u32 *device)
{
	struct ip addr;
	__u32 via;

	if (!forward_direct || !p || !remote || !device || (p->flow.protocol != IPPROTO_TCP && p->flow.protocol != IPPROTO_UDP))
		return false;
	addr = *remote; /* Linux 6.1 accepts map keys only from the stack */
	via = fast_path_device(&addr, p->v6);
	if (!via || route_device(skb, p, ifindex, ifindex != (int)skb->ifindex) != (int)via || !untracked(skb, p))
		return false;
	*device = via;
	return true;
}

/* Reports whether a device leads to the other end of a fast-path flow. known is the device that
 * did so before. */
static __always_inline bool leads_to(__u32 device, __u32 known, const struct ip *remote, bool v6)
{
	return device && (device == known || fast_path_device(remote, v6) == device);
}

/* Decrements the hop limit of a packet, as a router does. Checksums stay valid. In IPv4 the
 * header checksum changes by the same amount, so the program can write the header in place. */
static __always_inline bool decrement_hop_limit(struct __sk_buff *skb, bool v6)
{
	void *at = (void *)(long)skb->data + sizeof(struct ethhdr), *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip6 = at;
	struct iphdr *ip4 = at;
	__u32 check; /* byte order as on the wire */
	__u8 left;

	if (v6) {
		if (at + sizeof(*ip6) > end)
			return false;
		left = ip6->hop_limit - 1;
		return !bpf_skb_store_bytes(skb, sizeof(struct ethhdr) + offsetof(struct ipv6hdr, hop_limit), &left, 1, BPF_F_RECOMPUTE_CSUM);
	}
	if (at + sizeof(*ip4) > end)
		return false;
	check = ip4->check + (__u32)bpf_htons(0x0100);
	ip4->check = check + (check >= 0xffff);
	ip4->ttl--;
	return true;
}

/* Sends the packet of a pod to another node, as the host stack would. Leaves it to the host
 * stack if its hop limit is 1, it exceeds the MTU of the link, or the route has changed. */
__noinline int forward(struct __sk_buff *skb, const struct packet *p, int known)
{
	int device;
	struct ip to;

	if (!p || !forward_direct)
		return TC_ACT_UNSPEC;
	to = p->flow.dst; /* Linux 6.1 accepts map keys only from the stack */
	device = route_device(skb, p, skb->ifindex, false);
	if (!leads_to(device, known, &to, p->v6))
		return TC_ACT_UNSPEC;
	if (!decrement_hop_limit(skb, p->v6))
		return TC_ACT_SHOT;
	skb->mark = 0;
	return bpf_redirect_neigh(device, NULL, 0, 0);
}

/* Reports whether a pod can receive a packet from another node unchanged: it has a hop left and
 * fits the MTU of the pod's interface. */
static __always_inline bool receivable(struct __sk_buff *skb, const struct pod_ctx *pod, bool v6)
{
	__u32 index = pod->index, mtu = 0; /* Linux 6.1 accepts map keys only from the stack */
	struct attachment *to = bpf_map_lookup_elem(&attachments, &index);

	return to && to->ifindex && forwardable(skb, v6) && !bpf_check_mtu(skb, to->ifindex, &mtu, 0, BPF_MTU_CHK_SEGS);
}
