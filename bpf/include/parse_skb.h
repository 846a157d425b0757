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
