/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "checksum.h"
#include "foreign.h"
#include "source.h"

/* ARP and neighbour discovery between a pod and its host. Both have permanent neighbour entries
 * for each other, so neither needs to resolve the other. A tool in a pod may still send such
 * messages if they concern only that pod. No pod can fill the neighbour tables of the host or
 * of other pods. Pods with foreign interfaces need both protocols, also among each other. */

#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

/* ARP for IPv4 over Ethernet (RFC 826). */
struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_length;
	__u8 protocol_length;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__u8 sender[4];
	__u8 target_mac[ETH_ALEN];
	__u8 target[4];
} __attribute__((packed));

#define ARP_TARGET_MAC (sizeof(struct ethhdr) + offsetof(struct arp, target_mac))

/* Removes from an ARP message of a pod what a bridge would forward to other pods: all that follows it, and the
 * target MAC, which receivers ignore. In a reply, that becomes the MAC of the frame. Returns 0 or a negative number. */
static __always_inline int strip_arp(struct __sk_buff *skb, __be16 operation)
{
	__u8 target[ETH_ALEN] = {};

	if (bpf_skb_change_tail(skb, sizeof(struct ethhdr) + sizeof(struct arp), 0))
		return -1;
	if (operation == bpf_htons(ARP_REPLY) && bpf_skb_load_bytes(skb, 0, target, sizeof(target)))
		return -1;
	return bpf_skb_store_bytes(skb, ARP_TARGET_MAC, target, sizeof(target), 0);
}

/* Reports whether an ARP message of a pod concerns only that pod. Its sender address must be
 * that of the pod, or zero as in a probe (RFC 5227), which claims its target. */
__noinline int own_arp(struct __sk_buff *skb)
{
	const struct endpoint *e = find_endpoint(skb->ifindex);
	__u32 sender, own, target;
	struct ip claimed = {};
	struct arp arp;

	if (!e || bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &arp, sizeof(arp)))
		return false;
	if (arp.hardware != bpf_htons(ARP_ETHERNET) || arp.protocol != bpf_htons(ETH_P_IP) ||
	    arp.hardware_length != ETH_ALEN || arp.protocol_length != 4)
		return false;
	if ((arp.operation != bpf_htons(ARP_REQUEST) && arp.operation != bpf_htons(ARP_REPLY)) || checksum_place(skb) >= 0)
		return false;
	__builtin_memcpy(&sender, arp.sender, 4);
	__builtin_memcpy(&target, arp.target, 4);
	__builtin_memcpy(&own, e->ip4, 4);
	for (int i = 0; i < ETH_ALEN; i++) {
		if (arp.sender_mac[i] != e->mac[i])
			return false;
	}
	claimed.word[3] = sender;
	if (!sender) /* without a bridge, no other host hears it */
		claimed.word[3] = foreign ? target : own;
	if (!own || (claimed.word[3] != own && !is_further(e, &claimed, false)))
		return false;
	return !foreign || !strip_arp(skb, arp.operation);
}

/* Reports whether an ARP message may pass to a pod. One from another pod of a bridge must be about this pod, or about its
 * sender. */
__noinline int concerns_pod(struct __sk_buff *skb)
{
	const struct endpoint *e = find_endpoint(skb->ifindex);
	__u32 sender, own, target;
	struct ip asked = {};
	struct arp arp;

	if (!find_endpoint(skb->ingress_ifindex))
		return true;
	if (!e || bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &arp, sizeof(arp)))
		return false;
	__builtin_memcpy(&sender, arp.sender, 4);
	__builtin_memcpy(&target, arp.target, 4);
	__builtin_memcpy(&own, e->ip4, 4);
	asked.word[3] = target;
	return !sender || !target || target == sender || target == own || is_further(e, &asked, false);
}

/* Reports whether an address is the link-local address that the interface of the pod derives
 * from its MAC (RFC 4291, appendix A). */
static __always_inline bool own_link_local(const struct endpoint *e, const struct ip *a)
{
	__u32 high = e->mac[0] << 24 | e->mac[1] << 16 | e->mac[2] << 8 | 0xff;
	__u32 low = 0xfeu << 24 | e->mac[3] << 16 | e->mac[4] << 8 | e->mac[5];

	return a->word[0] == bpf_htonl(0xfe800000) && !a->word[1] && a->word[2] == bpf_htonl(high ^ 0x02000000) &&
		a->word[3] == bpf_htonl(low);
}

#define ND_SOURCE_MAC 1
#define ND_TARGET_MAC 2
#define ND_NONCE 14 /* of a question whether an address is free (RFC 7527) */
#define ND_FLAGS 0xe0000000 /* of an advertisement */

/* The parts of a message of neighbour discovery that a receiver learns from (RFC 4861, 4). */
struct nd_option {
	__u8 type;
	__u8 length; /* in units of 8 bytes */
	__u8 mac[ETH_ALEN];
};

/* Reports whether an address is one of a pod, or the link-local one of its interface. */
static __always_inline bool owns(const struct endpoint *e, const struct ip *a)
{
	struct ip own = address_of(e, true);

	return own_link_local(e, a) || (!unspecified(&own) && (same(a, &own) || is_further(e, a, true)));
}

/* The start of a message of neighbour discovery. */
struct nd_header {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 flags; /* of an advertisement; otherwise reserved, as are the other bits */
	struct ip target;
};

/* Reports whether the option of a message of neighbour discovery from a pod names only that pod. */
static __always_inline bool names_own_mac(const struct endpoint *e, const struct packet *p, const struct nd_option *option)
{
	if (option->length != 1)
		return false;
	if (option->type == ND_NONCE)
		return unspecified(&p->flow.src);
	for (int i = 0; i < ETH_ALEN; i++) {
		if (option->mac[i] != e->mac[i])
			return false;
	}
	return option->type == ND_SOURCE_MAC || option->type == ND_TARGET_MAC;
}

/* Reports whether a message of neighbour discovery from a pod names only that pod: its target,
 * if it is an advertisement or asks whether the target is free, and the MAC of its option. It may
 * have one option, and no data in other fields or behind the packet. Multicast listener messages name
 * no neighbour; only routers send queries, after which a bridge may forget listeners. */
__noinline int names_itself(struct __sk_buff *skb, const struct packet *p)
{
	const struct endpoint *e = find_endpoint(skb->ifindex);
	__u32 at = sizeof(struct ethhdr) + sizeof(struct ipv6hdr), size = 8;
	struct nd_option option;
	struct nd_header nd;
	struct ipv6hdr ip;

	if (!e || !p || bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip, sizeof(ip)))
		return false;
	if (p->icmp != ND_NEIGHBOUR_SOLICIT && p->icmp != ND_NEIGHBOUR_ADVERT && p->icmp != ND_ROUTER_SOLICIT)
		return p->icmp != MLD_QUERY;
	if (ip.nexthdr != IPPROTO_ICMPV6 || skb->len != at + bpf_ntohs(ip.payload_len) || bpf_skb_load_bytes(skb, at, &nd, size) || nd.code)
		return false;
	if (nd.flags & ~bpf_htonl(p->icmp == ND_NEIGHBOUR_ADVERT ? ND_FLAGS : 0))
		return false;
	if (p->icmp != ND_ROUTER_SOLICIT) {
		size = sizeof(nd);
		if (bpf_skb_load_bytes(skb, at, &nd, sizeof(nd)))
			return false;
		if (p->icmp == ND_NEIGHBOUR_ADVERT ? !same(&nd.target, &p->flow.src) : unspecified(&p->flow.src) && !owns(e, &nd.target))
			return false; /* the host that waits for an answer to the same question would give the address up */
	}
	if (bpf_ntohs(ip.payload_len) == size)
		return true;
	return bpf_ntohs(ip.payload_len) == size + sizeof(option) && !bpf_skb_load_bytes(skb, at + size, &option, sizeof(option)) &&
		names_own_mac(e, p, &option);
}

/* Reports whether a message from another pod of a bridge may pass to this one. Pods resolve each other. All else is
 * for routers, and could carry data. */
static __always_inline bool between_pods(struct __sk_buff *skb, const struct packet *p, const struct endpoint *e)
{
	struct ip target;

	if (p->icmp != ND_NEIGHBOUR_SOLICIT)
		return p->icmp == ND_NEIGHBOUR_ADVERT;
	return !bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + offsetof(struct nd_header, target), &target, sizeof(target)) &&
		owns(e, &target);
}

/* Reports whether a well-formed message of neighbour discovery or multicast listener discovery
 * may pass between a pod and its host. The caller treats all others as ordinary ICMP. */
__noinline int may_discover(struct __sk_buff *skb, const struct packet *p, int from_pod)
{
	const struct endpoint *e = find_endpoint(skb->ifindex);
	struct ip dst;

	if (!e || !p)
		return false;
	if (!from_pod && !skb->ingress_ifindex)
		return true;
	if (!from_pod) /* on a bridge, other pods and hosts ask, too */
		return foreign && p->kind == PACKET_NEIGHBOUR && (!find_endpoint(skb->ingress_ifindex) || between_pods(skb, p, e));
	if (p->kind == PACKET_ROUTER || (foreign && !names_itself(skb, p)))
		return false;
	dst = p->flow.dst; /* Linux 6.1 accepts map keys only from the stack */
	if (!foreign && !on_link(&dst) && owner_of(&dst, true) != OWNER_NODE)
		return false;
	/* A receiver learns no neighbour from an unspecified source. */
	return unspecified(&p->flow.src) || owns(e, &p->flow.src);
}
