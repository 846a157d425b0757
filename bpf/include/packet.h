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

/* Packets as the parser describes them, and their addresses. */

/* The maximum number of IPv6 extension headers. A packet with more is malformed. */
#define MAX_EXTENSIONS 8

/* Does not change their length in bytes, but bounds it for the verifier: each has at most 2048. */
#define CHAIN_MASK 0x7fff

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
#define IPPROTO_NONE 59
#define IPPROTO_DSTOPTS 60

enum packet_kind {
	PACKET_FLOW,      /* belongs to the flow that its addresses and ports name */
	PACKET_OPENS,     /* opens that flow: TCP SYN, ICMP echo request */
	PACKET_ERROR,     /* ICMP error about the flow in packet.quoted */
	PACKET_NEIGHBOUR, /* well-formed neighbour discovery or multicast listener message */
	PACKET_ROUTER,    /* the same, but of a type that only routers send: advertisement,
			   * redirect */
	PACKET_ANSWER,    /* only in struct post_dnat_record: allowed unless DNAT changes it. An answer in
			   * a flow that another end opened to the pod, or a packet to a pod */
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

/* The key of a flow, which end of the key sent the packet, and what conn_find found. */
struct conn_place {
	union {
		struct conn_key4 v4;
		struct conn_key6 v6;
	} key;
	__u32 generation; /* of the entry, when its key was that of the flow */
	bool src;         /* index of the end that sent the packet */
	bool expired;     /* the flow in the entry has expired */
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
	__u8 split; /* whether IPv6 has a fragment header, also one of a whole packet */
	__u8 routed; /* whether IPv4 has options, IPv6 a routing header */
	union {
		__u32 id;      /* of a fragment, byte order as on the wire */
		__u32 headers; /* of another packet, set by parse_any: bytes before the transport header */
	};
	__be32 seq; /* of TCP, as is ack */
	__be32 ack;
	__u32 payload; /* bytes after the TCP header, for a packet with FIN */
};

static __always_inline bool same(const struct ip *a, const struct ip *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
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

/* Reports whether an address is that of all routers of a site, ff05::2 (RFC 4291, 2.7.1). A Linux host that forwards
 * receives it on each interface. */
static __always_inline bool to_site_routers(const struct ip *a)
{
	return a->word[0] == bpf_htonl(0xff050000) && !(a->word[1] | a->word[2]) && a->word[3] == bpf_htonl(2);
}

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
