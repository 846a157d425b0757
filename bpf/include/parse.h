/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "maps.h"

/* The parser reads headers in place. If a packet is not plain (see parse_plain), the program
 * first makes up to this many bytes linear. It drops packets with longer headers as malformed. */
#define MAX_HEADERS 256

/* The maximum number of IPv6 extension headers. A packet with more is malformed. */
#define MAX_EXTENSIONS 8

/* Does not change a valid length of IPv4 options, but bounds it for the verifier. */
#define OPTIONS_MASK 0x3c

#define IP_MORE_FRAGMENTS 0x2000
#define IP_OFFSET 0x1fff
#define IP6_MORE_FRAGMENTS 0x0001
#define IP6_OFFSET 0xfff8

#ifndef IPPROTO_SCTP
#define IPPROTO_SCTP 132
#endif
#define IPPROTO_HOPOPTS 0
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_ICMPV6 58
#define IPPROTO_DSTOPTS 60

/* Hop limits that prove that no router forwarded the packet (RFC 4861, 6.1 and 7.1). Multicast
 * listener messages stay on the link (RFC 3810, 5). */
#define ND_HOPS 255
#define MLD_HOPS 1

#define ICMP4_ECHO_REPLY 0
#define ICMP4_UNREACHABLE 3
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

enum packet_kind {
	PACKET_FLOW,      /* belongs to the flow that its addresses and ports name */
	PACKET_OPENS,     /* opens that flow: TCP SYN, ICMP echo request */
	PACKET_ERROR,     /* ICMP error about the flow in packet.quoted */
	PACKET_NEIGHBOUR, /* well-formed neighbour discovery or multicast listener message */
	PACKET_ROUTER,    /* the same, but of a type that only routers send: advertisement,
			   * redirect */
	PACKET_ANSWER,    /* only in struct pending: an answer in a flow that another end opened
			   * to the pod */
};

/* Flags of a TCP header, as in byte TCP_FLAGS of the header. */
enum packet_tcp {
	PACKET_FIN = 0x01,
	PACKET_SYN = 0x02,
	PACKET_RST = 0x04,
	PACKET_ACK = 0x10,
};

#define TCP_FLAGS 13

enum packet_fragment {
	FRAGMENT_FIRST = 1,
	FRAGMENT_LATER = 2, /* has no ports; those of the first fragment apply */
};

/* An address as words in network byte order. IPv4 uses the last word. */
struct ip {
	__be32 word[4];
};

/* An address and a port in host byte order. */
struct end {
	struct ip addr;
	__u16 port;
	__u16 pad;
};

/* The two ends of a flow. Ports are in host byte order. */
struct flow {
	struct ip src;
	struct ip dst;
	__u16 src_port;
	__u16 dst_port;
	__u8 protocol;
	__u8 pad[3];
};

/* The key of a flow, and which end of the key sent the packet. */
struct conn_place {
	union {
		struct conn_key4 v4;
		struct conn_key6 v6;
	} key;
	bool src;     /* index of the end that sent the packet */
	bool expired; /* conn_find found an entry that has expired */
};

struct packet {
	struct flow flow;
	union {
		struct flow quoted;   /* for PACKET_ERROR; protocol 0 if the quotation is too
				       * short */
		struct conn_place at; /* for all other kinds, after a lookup in the flow table */
	};
	__u8 kind;
	__u8 tcp;      /* enum packet_tcp, without PACKET_SYN */
	__u8 fragment; /* enum packet_fragment */
	__u8 hops;     /* IPv6 hop limit */
	__u8 v6;
	__u8 icmp; /* type of an ICMP message */
	__u16 pad;
	__u32 id;   /* of a fragment, byte order as on the wire */
	__be32 seq; /* of TCP, as is ack */
	__be32 ack;
	__u32 payload; /* bytes after the TCP header, for a packet with FIN */
};

/* The first bytes of all ICMP and ICMPv6 messages. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be16 id; /* only in echo messages */
	__be16 sequence;
};

/* The part of a packet that is not parsed yet. */
struct cursor {
	void *pos;
	void *end;
};

/* Returns the next size bytes and advances the cursor, or returns NULL. */
static __always_inline void *take(struct cursor *c, __u32 size)
{
	void *p = c->pos;

	if (p + size > c->end)
		return NULL;
	c->pos = p + size;
	return p;
}

/* Reads the ports of TCP, UDP and SCTP, the first four bytes of each header. */
static __always_inline enum outcome parse_ports(struct cursor *c, struct flow *f)
{
	__be16 *ports = take(c, 4);

	if (!ports)
		return DROP_MALFORMED;
	f->src_port = bpf_ntohs(ports[0]);
	f->dst_port = bpf_ntohs(ports[1]);
	return ACT_PASS;
}

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

static __always_inline bool unspecified(const struct ip *a)
{
	return !(a->word[0] | a->word[1] | a->word[2] | a->word[3]);
}

static __always_inline bool link_local(const struct ip *a)
{
	return (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Reports whether no router forwards packets to the address: link-local unicast, or multicast
 * with link scope (RFC 4291, 2.7). */
static __always_inline bool on_link(const struct ip *a)
{
	return link_local(a) || (a->word[0] & bpf_htonl(0xffff0000)) == bpf_htonl(0xff020000);
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

/* Parses a fragment. Only the first one has the ports (see fragments.h). Neighbour discovery
 * must not be fragmented (RFC 6980). */
static __always_inline enum outcome parse_fragment(struct cursor *c, struct packet *p, __u32 id, bool first)
{
	enum outcome act;

	p->id = id;
	p->fragment = first ? FRAGMENT_FIRST : FRAGMENT_LATER;
	if (!first)
		return ACT_PASS;
	act = parse_transport(c, p, 0);
	if (p->kind == PACKET_NEIGHBOUR || p->kind == PACKET_ROUTER)
		p->kind = PACKET_FLOW;
	return act;
}

static __always_inline bool same(const struct ip *a, const struct ip *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
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
	fragment = bpf_ntohs(ip->frag_off);
	if (fragment & (IP_OFFSET | IP_MORE_FRAGMENTS))
		act = parse_fragment(c, p, ip->id, !(fragment & IP_OFFSET));
	else
		act = parse_transport(c, p, total > options + sizeof(*ip) ? total - options - sizeof(*ip) : 0);
	return act ? act : within(c, start, total);
}

struct extension {
	__u8 next;
	__u8 length; /* in units of 8 bytes, without the first 8 */
};

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
	__u32 length, taken;
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
		switch (next) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			ext = take(c, sizeof(*ext));
			if (!ext)
				return DROP_MALFORMED;
			next = ext->next;
			if (!take(c, ext->length * 8 + 6))
				return DROP_MALFORMED;
			break;
		case IPPROTO_FRAGMENT:
			fragment = take(c, sizeof(*fragment));
			if (!fragment || fragmented)
				return DROP_MALFORMED;
			next = fragment->next;
			id = fragment->id;
			offset = bpf_ntohs(fragment->offset);
			/* Offset 0 without more fragments is a whole packet. */
			fragmented = offset & (IP6_OFFSET | IP6_MORE_FRAGMENTS);
			first = !(offset & IP6_OFFSET);
			if (!first)
				goto done; /* the rest is payload */
			break;
		default:
			goto done;
		}
	}
	return DROP_MALFORMED;
done:
	p->flow.protocol = next;
	taken = c->pos - start;
	act = fragmented ? parse_fragment(c, p, id, first) : parse_transport(c, p, length > taken ? length - taken : 0);
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
