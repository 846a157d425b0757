/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/udp.h>
#include <stdbool.h>
#include "local.h"
#include "tracking.h"
#include "translate.h"

/* Flows between a pod of this node and one of another, past the stack: what has
 * to be so that nobody misses them there, and how their packets leave. */

/* Whether there are such flows at all. The agent writes it. */
volatile __u32 forward_direct;

#define AF_INET 2
#define AF_INET6 10
#define IP6_FLOWINFO 0x0fffffff

/* The range of another node's pods that an address is in, or NULL. */
static __always_inline struct way *find_way(const struct ip *addr, bool v6)
{
	struct prefix6 prefix;

	if (v6) {
		prefix.bits = 128;
		__builtin_memcpy(prefix.addr, addr, 16);
		return bpf_map_lookup_elem(&ways6, &prefix);
	}
	prefix.bits = 32;
	__builtin_memcpy(prefix.addr, &addr->word[3], 4);
	return bpf_map_lookup_elem(&ways4, &prefix);
}

/* The device by which an address is reached, if packets may bypass the stack. */
static __always_inline __u32 way_to(const struct ip *addr, bool v6)
{
	struct way *found = find_way(addr, v6);

	return found && found->direct ? found->ifindex : 0;
}

/* Whether a frame is for this host and untagged, and its packet has a hop left,
 * no options, no extensions and is no fragment: what is forwarded as it is. */
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

/* Length of the largest packet that this one becomes on a link. */
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

/* The device by which the stack would send a packet that a pod's interface
 * brings, or, with back, the answer to it; 0 if that takes more than to send it
 * to a neighbour. Whether that is known to be there the kernel finds out then. */
__noinline int leaves(struct __sk_buff *skb, const struct packet *p, int ifindex, int back)
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

/* Whether the packet of an unknown flow may start one past the stack, between a
 * pod of this node, behind an interface, and an address elsewhere: a pod's
 * address in the range of a node, reached by the device that the fabric means it
 * to be, which connection tracking never heard of. */
__noinline int starts_remote(struct __sk_buff *skb, const struct packet *p, const struct ip *remote, int ifindex, __u32 *device)
{
	struct ip addr;
	__u32 way;

	if (!forward_direct || !p || !remote || !device || (p->flow.protocol != IPPROTO_TCP && p->flow.protocol != IPPROTO_UDP))
		return false;
	addr = *remote; /* as in read_slot */
	way = way_to(&addr, p->v6);
	if (!way || leaves(skb, p, ifindex, ifindex != (int)skb->ifindex) != (int)way || !untracked(skb, p))
		return false;
	*device = way;
	return true;
}

/* Whether a device leads to the other end of a flow that bypasses the stack; known
 * is the one that did. */
static __always_inline bool leads(__u32 device, __u32 known, const struct ip *remote, bool v6)
{
	return device && (device == known || way_to(remote, v6) == device);
}

/* Takes a hop of a packet, as a router. Sums of the packet stay right: in IPv4 the
 * header's changes by as much, so that it can be written in place as in deliver. */
static __always_inline bool take_hop(struct __sk_buff *skb, bool v6)
{
	void *at = (void *)(long)skb->data + sizeof(struct ethhdr), *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip6 = at;
	struct iphdr *ip4 = at;
	__u32 check; /* as on the wire */
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

/* Sends a pod's packet to another node as the stack would, or leaves it to the
 * stack: what has no hop left, does not fit, or goes elsewhere by now. */
__noinline int forward(struct __sk_buff *skb, const struct packet *p, int known)
{
	int device;
	struct ip to;

	if (!p || !forward_direct)
		return TC_ACT_UNSPEC;
	to = p->flow.dst; /* as in read_slot */
	device = leaves(skb, p, skb->ifindex, false);
	if (!leads(device, known, &to, p->v6))
		return TC_ACT_UNSPEC;
	if (!take_hop(skb, p->v6))
		return TC_ACT_SHOT;
	skb->mark = 0;
	return bpf_redirect_neigh(device, NULL, 0, 0);
}

/* Whether a pod takes a packet from another node as it is: it has a hop left, and
 * the pod's interface has room for it. */
static __always_inline bool receivable(struct __sk_buff *skb, const struct local *pod, bool v6)
{
	__u32 index = pod->index, mtu = 0; /* as in read_slot */
	struct attachment *to = bpf_map_lookup_elem(&attachments, &index);

	return to && to->ifindex && forwardable(skb, v6) && !bpf_check_mtu(skb, to->ifindex, &mtu, 0, BPF_MTU_CHK_SEGS);
}
