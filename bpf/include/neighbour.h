/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "arrival.h"

/* ARP and neighbour discovery between a pod and its host. Both have permanent
 * entries for each other, so that neither has to ask. What tools in a pod send may
 * pass as long as it speaks for the pod alone: no pod fills the tables of the host,
 * or of others. */

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

/* Whether ARP of a pod speaks for the pod: the sender is its own, or a probe's
 * (RFC 5227) without an address. */
__noinline int own_arp(struct __sk_buff *skb)
{
	const struct endpoint *e = find_endpoint(skb->ifindex);
	__u32 sender, own;
	struct arp arp;

	if (!e || bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &arp, sizeof(arp)))
		return false;
	if (arp.hardware != bpf_htons(ARP_ETHERNET) || arp.protocol != bpf_htons(ETH_P_IP) ||
	    arp.hardware_length != ETH_ALEN || arp.protocol_length != 4)
		return false;
	if (arp.operation != bpf_htons(ARP_REQUEST) && arp.operation != bpf_htons(ARP_REPLY))
		return false;
	__builtin_memcpy(&sender, arp.sender, 4);
	__builtin_memcpy(&own, e->ip4, 4);
	for (int i = 0; i < ETH_ALEN; i++) {
		if (arp.sender_mac[i] != e->mac[i])
			return false;
	}
	return own && (sender == own || !sender);
}

/* Whether an address is the one that a pod's interface gives itself on the link,
 * made of its MAC (RFC 4291, appendix A). */
static __always_inline bool own_link_local(const struct endpoint *e, const struct ip *a)
{
	__u32 high = e->mac[0] << 24 | e->mac[1] << 16 | e->mac[2] << 8 | 0xff;
	__u32 low = 0xfeu << 24 | e->mac[3] << 16 | e->mac[4] << 8 | e->mac[5];

	return a->word[0] == bpf_htonl(0xfe800000) && !a->word[1] && a->word[2] == bpf_htonl(high ^ 0x02000000) &&
	       a->word[3] == bpf_htonl(low);
}

/* Whether a well-formed message of neighbour discovery or multicast listeners may
 * pass between a pod and its host. What may not is ICMP like any other. */
__noinline int may_discover(struct __sk_buff *skb, const struct packet *p, int from_pod)
{
	const struct endpoint *e = find_endpoint(skb->ifindex);
	struct ip own, dst;

	if (!e || !p)
		return false;
	if (!from_pod)
		return !skb->ingress_ifindex;
	if (p->kind == PACKET_ROUTER)
		return false;
	own = address_of(e, true);
	dst = p->flow.dst; /* as in read_slot */
	if (!on_link(&dst) && owner_of(&dst, true) != OWNER_NODE)
		return false;
	/* No address is learned from what has none. */
	return unspecified(&p->flow.src) || own_link_local(e, &p->flow.src) || (!unspecified(&own) && same(&p->flow.src, &own));
}
