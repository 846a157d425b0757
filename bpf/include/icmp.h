/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "packet.h"

/* The parser of ICMP and ICMPv6, with neighbour discovery. */

/* Hop limits that prove that no router forwarded the packet (RFC 4861, 6.1 and 7.1). Multicast
 * listener messages stay on the link (RFC 3810, 5). */
#define ND_HOPS 255
#define MLD_HOPS 1

#define ICMP4_ECHO_REPLY 0
#define ICMP4_UNREACHABLE 3
#define ICMP4_SOURCE_QUENCH 4
#define ICMP4_REDIRECT 5
#define ICMP4_ECHO_REQUEST 8
#define ICMP4_TIME_EXCEEDED 11
#define ICMP4_PARAMETER_PROBLEM 12
#define ICMP6_UNREACHABLE 1
#define ICMP6_PARAMETER_PROBLEM 4
#define ICMP6_ECHO_REQUEST 128
#define ICMP6_ECHO_REPLY 129
#define ND_ROUTER_SOLICIT 133
#define ND_ROUTER_ADVERT 134
#define ND_NEIGHBOUR_SOLICIT 135
#define ND_NEIGHBOUR_ADVERT 136
#define ND_REDIRECT 137
#define MLD_QUERY 130
#define MLD_DONE 132
#define MLD2_REPORT 143

/* Reports whether connection tracking may skip a header of IPv6 to find what follows. */
static __always_inline bool is_extension(__u8 next)
{
	return next == IPPROTO_ROUTING || next == IPPROTO_FRAGMENT || next == IPPROTO_AH || next == IPPROTO_NONE || next == IPPROTO_DSTOPTS;
}

/* Reports whether a message is one that connection tracking takes for an error about a flow, but that
 * no pod has a reason to send: source quench, redirect, and the unassigned types of ICMPv6. */
static __always_inline bool odd_error(const struct packet *p, bool v6)
{
	if (p->kind == PACKET_ERROR || p->fragment == FRAGMENT_LATER)
		return false;
	if (v6)
		return p->flow.protocol == IPPROTO_ICMPV6 && p->icmp < ICMP6_ECHO_REQUEST;
	return p->flow.protocol == IPPROTO_ICMP && (p->icmp == ICMP4_SOURCE_QUENCH || p->icmp == ICMP4_REDIRECT);
}

/* The first bytes of all ICMP and ICMPv6 messages. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be16 id; /* only in echo messages */
	__be16 sequence;
};

/* Reads the ports of the packet that an ICMP error quotes. Eight bytes of its transport header
 * suffice. If they are missing, the protocol stays 0. */
static __always_inline void parse_quoted_ports(struct cursor *c, struct flow *f, __u8 protocol, bool v6)
{
	struct icmp_header *icmp;

	switch (protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		if (parse_ports(c, f))
			return;
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (protocol != (v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
			break; /* ICMP of the other IP version has no ports here */
		icmp = take(c, sizeof(*icmp));
		if (!icmp)
			return;
		f->src_port = f->dst_port = bpf_ntohs(icmp->id);
		break;
	}
	f->protocol = protocol;
}

static __always_inline enum outcome parse_icmp4(struct cursor *c, struct packet *p)
{
	struct icmp_header *icmp = take(c, sizeof(*icmp));
	struct iphdr *ip;
	__u32 length;

	if (!icmp)
		return DROP_MALFORMED;
	p->icmp = icmp->type;
	switch (icmp->type) {
	case ICMP4_ECHO_REQUEST:
		p->kind = PACKET_OPENS;
		/* fall through */
	case ICMP4_ECHO_REPLY:
		p->flow.src_port = p->flow.dst_port = bpf_ntohs(icmp->id);
		return ACT_PASS;
	case ICMP4_UNREACHABLE:
	case ICMP4_TIME_EXCEEDED:
	case ICMP4_PARAMETER_PROBLEM:
		break;
	default:
		return ACT_PASS;
	}
	p->kind = PACKET_ERROR;
	ip = take(c, sizeof(*ip));
	if (!ip || ip->version != 4 || ip->ihl < 5)
		return DROP_MALFORMED;
	p->quoted.src.word[3] = ip->saddr;
	p->quoted.dst.word[3] = ip->daddr;
	length = (ip->ihl - 5) * 4 & OPTIONS_MASK;
	if (!take(c, length) || ip->frag_off & bpf_htons(IP_OFFSET))
		return ACT_PASS;
	parse_quoted_ports(c, &p->quoted, ip->protocol, false);
	return ACT_PASS;
}

/* Returns the kind of a message of neighbour discovery or multicast listener discovery. It is
 * one of these only if no router can have forwarded it, as the RFCs require. Otherwise it is
 * ordinary ICMP. Unicast solicitations and advertisements may have a global destination; the
 * caller checks that it is on the link. */
__noinline int kind_of_neighbour(const struct packet *p)
{
	bool on_the_link, from_link;

	if (!p)
		return PACKET_FLOW;
	on_the_link = on_link(&p->flow.dst);
	from_link = link_local(&p->flow.src) || unspecified(&p->flow.src);
	switch (p->icmp) {
	case ND_NEIGHBOUR_SOLICIT:
	case ND_NEIGHBOUR_ADVERT:
		return p->hops == ND_HOPS ? PACKET_NEIGHBOUR : PACKET_FLOW;
	case ND_ROUTER_SOLICIT:
		return p->hops == ND_HOPS && on_the_link ? PACKET_NEIGHBOUR : PACKET_FLOW;
	case ND_ROUTER_ADVERT:
	case ND_REDIRECT:
		return p->hops == ND_HOPS && on_the_link && link_local(&p->flow.src) ? PACKET_ROUTER : PACKET_FLOW;
	}
	return p->hops == MLD_HOPS && on_the_link && from_link ? PACKET_NEIGHBOUR : PACKET_FLOW;
}

static __always_inline enum outcome parse_icmp6(struct cursor *c, struct packet *p)
{
	struct icmp_header *icmp = take(c, sizeof(*icmp));
	struct ipv6hdr *ip;

	if (!icmp)
		return DROP_MALFORMED;
	p->icmp = icmp->type;
	switch (icmp->type) {
	case ICMP6_ECHO_REQUEST:
		p->kind = PACKET_OPENS;
		/* fall through */
	case ICMP6_ECHO_REPLY:
		p->flow.src_port = p->flow.dst_port = bpf_ntohs(icmp->id);
		return ACT_PASS;
	case MLD_QUERY ... MLD_DONE:
	case ND_ROUTER_SOLICIT ... ND_REDIRECT:
	case MLD2_REPORT:
		p->kind = kind_of_neighbour(p);
		return ACT_PASS;
	case ICMP6_UNREACHABLE ... ICMP6_PARAMETER_PROBLEM:
		break;
	default:
		return ACT_PASS;
	}
	p->kind = PACKET_ERROR;
	ip = take(c, sizeof(*ip));
	if (!ip || ip->version != 6)
		return DROP_MALFORMED;
	__builtin_memcpy(&p->quoted.src, &ip->saddr, 16);
	__builtin_memcpy(&p->quoted.dst, &ip->daddr, 16);
	parse_quoted_ports(c, &p->quoted, ip->nexthdr, true);
	return ACT_PASS;
}
