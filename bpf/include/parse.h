/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "icmp.h"
#include "packet.h"

/* The parser of IP packets. */

/* Reads the parts of a TCP header that the flow table needs. length is the length of header and
 * payload in bytes, 0 if unknown. */
static __always_inline void read_tcp(const struct tcphdr *tcp, struct packet *p, __u32 length)
{
	__u8 flags = ((const __u8 *)tcp)[TCP_FLAGS];

	p->flow.src_port = bpf_ntohs(tcp->source);
	p->flow.dst_port = bpf_ntohs(tcp->dest);
	p->seq = tcp->seq;
	p->ack = tcp->ack_seq;
	p->tcp = flags & (PACKET_FIN | PACKET_RST | PACKET_ACK);
	if ((flags & (PACKET_SYN | PACKET_ACK)) == PACKET_SYN)
		p->kind = PACKET_OPENS;
	if ((flags & PACKET_FIN) && length > tcp->doff * 4)
		p->payload = length - tcp->doff * 4;
}

static __always_inline enum outcome parse_tcp(struct cursor *c, struct packet *p, __u32 length)
{
	struct tcphdr *tcp = take(c, sizeof(*tcp));

	if (!tcp || tcp->doff < 5)
		return DROP_MALFORMED;
	read_tcp(tcp, p, length);
	return ACT_PASS;
}

/* Parses the transport header of a whole packet or a first fragment. length is that of the
 * transport header and payload in bytes. ICMP must match the IP version; the ICMP of the other
 * version is a protocol without ports. */
static __always_inline enum outcome parse_transport(struct cursor *c, struct packet *p, __u32 length)
{
	switch (p->flow.protocol) {
	case IPPROTO_TCP:
		return parse_tcp(c, p, length);
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		return parse_ports(c, &p->flow);
	case IPPROTO_ICMP:
		return p->v6 ? ACT_PASS : parse_icmp4(c, p);
	case IPPROTO_ICMPV6:
		return p->v6 ? parse_icmp6(c, p) : ACT_PASS;
	}
	return ACT_PASS;
}

/* Parses a fragment. Only the first one has the ports (see fragments.h). */
static __always_inline enum outcome parse_fragment(struct cursor *c, struct packet *p, __u32 id, bool first)
{
	p->id = id;
	p->fragment = first ? FRAGMENT_FIRST : FRAGMENT_LATER;
	return first ? parse_transport(c, p, 0) : ACT_PASS;
}

/* Reports whether the parsed headers end within the length that IP gives; padding may follow.
 * Length 0 is a packet above 64 KiB that the host stack will segment. */
static __always_inline enum outcome within(const struct cursor *c, const void *start, __u32 length)
{
	return length && c->pos - start > length ? DROP_MALFORMED : ACT_PASS;
}

static __always_inline enum outcome parse_ip4(struct cursor *c, struct packet *p)
{
	void *start = c->pos;
	struct iphdr *ip = take(c, sizeof(*ip));
	__u32 options, total;
	__u16 fragment;
	enum outcome act;

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return DROP_MALFORMED;
	total = bpf_ntohs(ip->tot_len);
	options = (ip->ihl - 5) * 4 & OPTIONS_MASK;
	if (!take(c, options))
		return DROP_MALFORMED;
	p->flow.src.word[3] = ip->saddr;
	p->flow.dst.word[3] = ip->daddr;
	p->flow.protocol = ip->protocol;
	p->routed = options;
	p->headers = sizeof(*ip) + options;
	fragment = bpf_ntohs(ip->frag_off);
	if (fragment & (IP_OFFSET | IP_MORE_FRAGMENTS))
		act = parse_fragment(c, p, ip->id, !(fragment & IP_OFFSET));
	else
		act = parse_transport(c, p, total > options + sizeof(*ip) ? total - options - sizeof(*ip) : 0);
	return act ? act : within(c, start, total);
}

struct extension {
	__u8 next;
	__u8 length; /* in units of 8 bytes, of 4 for an authentication header, without the first 8 bytes */
};

/* Returns the unit of an extension header's length in bytes. Without a branch, because the verifier would follow the packet
 * behind each unit. */
static __always_inline __u32 unit_of(__u8 protocol)
{
	__u32 other = protocol ^ IPPROTO_AH;

	asm volatile("" : "+r"(other));
	return 8 - ((other - 1) >> 31) * 4;
}

/* Reports whether a header of IPv6 is one that the programs skip, as connection tracking does: any extension but a
 * fragment header. */
static __always_inline bool skipped(__u32 protocol)
{
	if (protocol == IPPROTO_AH)
		return true;
	asm volatile("" : "+r"(protocol)); /* the verifier would follow more paths through a test of bits */
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_DSTOPTS;
}

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

static __always_inline enum outcome parse_ip6(struct cursor *c, struct packet *p)
{
	struct ipv6hdr *ip = take(c, sizeof(*ip));
	struct fragment_header *fragment = NULL;
	struct extension *ext;
	__u16 offset;
	__u32 id = 0;
	bool fragmented = false, first = true;
	void *start = c->pos;
	__u32 length, taken, rest, other;
	__u8 next;
	enum outcome act;

	if (!ip || ip->version != 6)
		return DROP_MALFORMED;
	length = bpf_ntohs(ip->payload_len);
	__builtin_memcpy(&p->flow.src, &ip->saddr, 16);
	__builtin_memcpy(&p->flow.dst, &ip->daddr, 16);
	p->hops = ip->hop_limit;
	next = ip->nexthdr;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (skipped(next)) {
			ext = take(c, sizeof(*ext));
			if (!ext)
				return DROP_MALFORMED;
			rest = ext->length * unit_of(next);
			asm volatile("" : "+r"(rest)); /* keeps the mask: Linux 6.1 does not derive that it is at most 255 * 8 */
			if (!take(c, (rest & 0x7fc) + 8 - sizeof(*ext)))
				return DROP_MALFORMED;
			other = next ^ IPPROTO_ROUTING;
			asm volatile("" : "+r"(other));
			p->routed |= (other - 1) >> 31; /* without a branch, as in unit_of */
			next = ext->next;
			continue;
		}
		if (next != IPPROTO_FRAGMENT)
			goto done;
		fragment = take(c, sizeof(*fragment));
		if (!fragment || fragmented)
			return DROP_MALFORMED;
		p->split = true;
		next = fragment->next;
		id = fragment->id;
		offset = bpf_ntohs(fragment->offset);
		/* Offset 0 without more fragments is a whole packet. */
		fragmented = offset & (IP6_OFFSET | IP6_MORE_FRAGMENTS);
		first = !(offset & IP6_OFFSET);
		if (!first)
			goto done; /* the rest is payload */
	}
	return DROP_MALFORMED;
done:
	p->flow.protocol = next;
	/* The verifier does not follow the difference of pointers. So it checks the rest once, not for each chain of headers. */
	taken = c->pos - start;
	asm volatile("" : "+r"(taken));
	c->pos = start + (taken & CHAIN_MASK);
	p->headers = sizeof(*ip) + (taken & CHAIN_MASK);
	act = fragmented ? parse_fragment(c, p, id, first) : parse_transport(c, p, length > taken ? length - taken : 0);
	/* Neighbour discovery must not be fragmented (RFC 6980). */
	if (p->split && (p->kind == PACKET_NEIGHBOUR || p->kind == PACKET_ROUTER))
		p->kind = PACKET_FLOW;
	return act ? act : within(c, start, length);
}

/* Parses a plain packet: IP without options, extension headers or fragments, then TCP, UDP or
 * SCTP whose header ends before end. Most packets are plain. Returns false if the packet is not
 * plain. The payload need not be linear: linearizing would copy nearly every packet that a
 * socket sends. */
static __always_inline bool parse_plain(void *at, void *end, struct packet *p, bool v6)
{
	__u32 size = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr), length;
	struct tcphdr *tcp = at + size;
	struct ipv6hdr *ip6 = at;
	struct iphdr *ip4 = at;
	__u8 protocol;

	if (at + size + 4 > end)
		return false;
	if (v6) {
		if (ip6->version != 6)
			return false;
		protocol = ip6->nexthdr;
		length = bpf_ntohs(ip6->payload_len);
		__builtin_memcpy(&p->flow.src, &ip6->saddr, 16);
		__builtin_memcpy(&p->flow.dst, &ip6->daddr, 16);
		size = 0; /* the IPv6 payload length excludes the IP header */
	} else {
		if (*(__u8 *)at != 0x45 || ip4->frag_off & bpf_htons(IP_OFFSET | IP_MORE_FRAGMENTS))
			return false;
		protocol = ip4->protocol;
		length = bpf_ntohs(ip4->tot_len);
		p->flow.src.word[3] = ip4->saddr;
		p->flow.dst.word[3] = ip4->daddr;
	}
	p->flow.protocol = protocol;
	if (protocol == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > end || tcp->doff < 5)
			return false;
		read_tcp(tcp, p, length > size ? length - size : 0);
		size += sizeof(*tcp);
	} else if (protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP) {
		p->flow.src_port = bpf_ntohs(tcp->source);
		p->flow.dst_port = bpf_ntohs(tcp->dest);
		size += 4;
	} else {
		return false;
	}
	return !length || size <= length;
}
