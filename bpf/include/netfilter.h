/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "parse.h"

/* Packets at the netfilter hooks of the host stack, for both types of programs. */

enum place {
	PRE_ROUTING,
	FORWARD,
	LOCAL_IN,
	LOCAL_OUT,
};

/* A packet at a netfilter hook. */
struct view {
	void *from; /* the context of a socket filter, or a dynptr */
	bool filter;
	enum place place;
	__u32 mark;
	__u32 ifindex; /* of the interface it arrived by */
	__u32 len;
};

static __always_inline int load(const struct view *v, __u32 offset, void *to, __u32 size)
{
	if (v->filter)
		return bpf_skb_load_bytes_relative(v->from, offset, to, size, BPF_HDR_START_NET);
	return bpf_dynptr_read(to, size, v->from, offset, 0);
}

/* Reads the ports at an offset. A later fragment has none; it gets those of was, the recorded
 * flow. */
static __always_inline int load_ports(const struct view *v, __u32 offset, struct flow *f, const struct flow *was, bool later)
{
	__be16 ports[2];

	if (later) {
		f->src_port = was->src_port;
		f->dst_port = was->dst_port;
		return same(&f->dst, &was->dst) ? 0 : -1;
	}
	if (load(v, offset, ports, sizeof(ports)))
		return -1;
	f->src_port = bpf_ntohs(ports[0]);
	f->dst_port = bpf_ntohs(ports[1]);
	return 0;
}

/* The start of most IPv4 packets: a header without options, and ports. */
struct plain4 {
	struct iphdr ip;
	__be16 ports[2];
};

static __always_inline int load_flow4(const struct view *v, struct flow *f, const struct flow *was)
{
	struct plain4 h;

	/* a later fragment may be shorter */
	if (load(v, 0, &h, sizeof(h)) && (load(v, 0, &h.ip, sizeof(h.ip)) || !(h.ip.frag_off & bpf_htons(IP_OFFSET))))
		return -1;
	f->src.word[3] = h.ip.saddr;
	f->dst.word[3] = h.ip.daddr;
	f->protocol = h.ip.protocol;
	if (h.ip.ihl != 5 || h.ip.frag_off & bpf_htons(IP_OFFSET))
		return h.ip.ihl < 5 ? -1 : load_ports(v, h.ip.ihl * 4, f, was, h.ip.frag_off & bpf_htons(IP_OFFSET));
	f->src_port = bpf_ntohs(h.ports[0]);
	f->dst_port = bpf_ntohs(h.ports[1]);
	return 0;
}

static __always_inline int load_flow6(const struct view *v, struct flow *f, const struct flow *was)
{
	struct ipv6hdr ip;
	struct fragment_header h;
	__u32 offset = sizeof(ip);
	bool later = false;

	if (load(v, 0, &ip, sizeof(ip)))
		return -1;
	__builtin_memcpy(&f->src, &ip.saddr, 16);
	__builtin_memcpy(&f->dst, &ip.daddr, 16);
	f->protocol = ip.nexthdr;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		bool fragment = f->protocol == IPPROTO_FRAGMENT;

		if (later || (!fragment && !skipped(f->protocol)))
			return load_ports(v, offset, f, was, later);
		if (load(v, offset, &h, sizeof(h)))
			return -1;
		offset += fragment ? 8 : h.reserved * unit_of(f->protocol) + 8; /* the second byte is the length */
		f->protocol = h.next;
		later = fragment && h.offset & bpf_htons(IP6_OFFSET);
	}
	return -1;
}
