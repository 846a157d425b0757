/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/if_ether.h>
#include <linux/udp.h>
#include <stdbool.h>
#include "maps.h"
#include "parse.h"
#include "view.h"

/* Tunneled packets (VXLAN, RFC 7348). The kernel takes them from any host that sends to
 * its port, on any interface. Here the outer source has to be a node of the fabric, and
 * the inner source one of that node's own addresses. */

/* UDP port of the tunnels' device, 0 if there is none, and its VNI. Set by the loader. */
const volatile __u32 tunnel_port;
const volatile __u32 tunnel_vni;

/* Nodes by underlay address; IPv4 is in the last four bytes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct addr6);
	__type(value, struct tunnel_node);
} tunnel_nodes SEC(".maps");

/* Nodes by the addresses that they send from in tunnels: pod ranges, and their own. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix4);
	__type(value, struct tunnel_node);
} tunnel_sources4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct prefix6);
	__type(value, struct tunnel_node);
} tunnel_sources6 SEC(".maps");

struct vxlan {
	__be32 flags;
	__be32 vni; /* in the upper 24 bits */
};

/* The node that sends from an inner address, or NULL. */
static __always_inline struct tunnel_node *tunnel_source(const struct view *v, __u32 offset, __be16 protocol)
{
	struct tunnel_node *found = NULL;

	if (protocol == bpf_htons(ETH_P_IP)) {
		struct prefix4 prefix = { .bits = 32 };

		if (!load(v, offset + offsetof(struct iphdr, saddr), prefix.addr, sizeof(prefix.addr)))
			found = bpf_map_lookup_elem(&tunnel_sources4, &prefix);
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct prefix6 prefix = { .bits = 128 };

		if (!load(v, offset + offsetof(struct ipv6hdr, saddr), prefix.addr, sizeof(prefix.addr)))
			found = bpf_map_lookup_elem(&tunnel_sources6, &prefix);
	}
	return found;
}

/* Where UDP begins in a packet, 0 if it is of another protocol, less than 0 if that
 * cannot be told. Of a fragment, as if it was whole. */
static __always_inline int find_udp(const struct view *v, bool v6, bool *fragmented)
{
	struct fragment_header h;
	struct ipv6hdr ip6;
	struct iphdr ip4;
	__u32 offset = sizeof(ip6);
	__u8 next;

	*fragmented = false;
	if (!v6)
		return load(v, 0, &ip4, sizeof(ip4)) || ip4.ihl < 5 ? -1 : ip4.protocol == IPPROTO_UDP ? ip4.ihl * 4 : 0;
	if (load(v, 0, &ip6, sizeof(ip6)))
		return -1;
	next = ip6.nexthdr;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (next == IPPROTO_UDP)
			return offset;
		if (next != IPPROTO_FRAGMENT && next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS)
			return 0;
		if (load(v, offset, &h, sizeof(h)))
			return -1;
		if (next == IPPROTO_FRAGMENT) {
			if (h.offset & bpf_htons(IP6_OFFSET))
				return 0; /* nothing without the first */
			if (h.offset & bpf_htons(IP6_MORE_FRAGMENTS)) /* a later header of its own does not undo it */
				*fragmented = true;
		}
		offset += next == IPPROTO_FRAGMENT ? 8 : h.reserved * 8 + 8; /* second byte: length */
		next = h.next;
	}
	return -1;
}

/* Whether a packet for this host may enter it: it is not for the tunnels, or comes
 * from the node that it says. */
static __always_inline bool may_enter(const struct view *v, bool v6)
{
	struct addr6 outer = {};
	struct tunnel_node *node, *source;
	struct vxlan vxlan;
	struct udphdr udp;
	struct ethhdr eth;
	bool fragmented;
	int at;

	if (!tunnel_port)
		return true;
	at = find_udp(v, v6, &fragmented);
	if (at <= 0)
		return !at;
	if (load(v, at, &udp, sizeof(udp)) || udp.dest != bpf_htons(tunnel_port))
		return true;
	if (fragmented)
		return false; /* nodes send none, and what is inside would not be seen */
	if (load(v, at + sizeof(udp), &vxlan, sizeof(vxlan)) || bpf_ntohl(vxlan.vni) >> 8 != tunnel_vni)
		return true; /* for another device */
	if (load(v, v6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr), v6 ? outer.addr : outer.addr + 12, v6 ? 16 : 4))
		return false;
	node = bpf_map_lookup_elem(&tunnel_nodes, &outer);
	if (!node || load(v, at + sizeof(udp) + sizeof(vxlan), &eth, sizeof(eth)))
		return false;
	source = tunnel_source(v, at + sizeof(udp) + sizeof(vxlan) + sizeof(eth), eth.h_proto);
	return source && source->id == node->id;
}
