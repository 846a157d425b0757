/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "parse.h"

/* The parser of packets whose headers may be outside the linear part of the skb. */

/* The parser reads headers in place. If a packet is not plain (see parse_plain), the program
 * first makes up to this many bytes linear. It drops packets with longer headers as malformed. */
#define MAX_HEADERS 256

/* Parses any packet, and overwrites what parse_plain has left in p. Not inlined, so that the
 * verifier checks it only once. The caller's pointers into the packet become invalid. */
__noinline enum outcome parse_any(struct __sk_buff *skb, struct packet *p, int v6)
{
	__u32 headers = skb->len < MAX_HEADERS ? skb->len : MAX_HEADERS;
	struct cursor c;

	if (!p)
		return DROP_MALFORMED;
	if (skb->data + headers > skb->data_end)
		bpf_skb_pull_data(skb, headers);
	c.pos = (void *)(long)skb->data + sizeof(struct ethhdr);
	c.end = (void *)(long)skb->data_end;
	__builtin_memset(p, 0, sizeof(*p));
	p->v6 = v6;
	return v6 ? parse_ip6(&c, p) : parse_ip4(&c, p);
}

#define IP4_OPTION_END 0
#define IP4_OPTION_NONE 1
#define IP4_LOOSE_ROUTE 131
#define IP4_STRICT_ROUTE 137
#define IP4_OPTIONS 40 /* the most */

/* Returns the offset of what follows the IPv4 option at an offset, or 0 for a source route and an invalid length. A global function,
 * so that its caller's loop has one state for the verifier. */
__noinline int option_after(struct __sk_buff *skb, __u32 at)
{
	__u8 byte;

	if (bpf_skb_load_bytes(skb, at, &byte, 1) || byte == IP4_LOOSE_ROUTE || byte == IP4_STRICT_ROUTE)
		return 0;
	if (byte == IP4_OPTION_END)
		return MAX_HEADERS; /* the rest is padding */
	if (byte == IP4_OPTION_NONE)
		return at + 1;
	return bpf_skb_load_bytes(skb, at + 1, &byte, 1) || byte < 2 ? 0 : at + byte;
}

/* Reports whether an IPv4 packet has a source route. */
__noinline int source_routed(struct __sk_buff *skb)
{
	__u32 at = sizeof(struct ethhdr) + sizeof(struct iphdr), end;
	__u8 length;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &length, 1))
		return true;
	end = sizeof(struct ethhdr) + (length & 0xf) * 4;
	for (int i = 0; i < IP4_OPTIONS && at && at < end; i++)
		at = option_after(skb, at);
	return !at;
}

/* Reports whether a packet is ICMP directly after the IP header. */
static __always_inline bool plain_icmp(void *at, void *end, bool v6)
{
	struct ipv6hdr *ip6 = at;
	struct iphdr *ip4 = at;

	if (v6)
		return at + sizeof(*ip6) <= end && ip6->nexthdr == IPPROTO_ICMPV6;
	return at + sizeof(*ip4) <= end && *(__u8 *)at == 0x45 && ip4->protocol == IPPROTO_ICMP &&
		!(ip4->frag_off & bpf_htons(IP_OFFSET | IP_MORE_FRAGMENTS));
}
