/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/if_ether.h>
#include <linux/udp.h>
#include <stdbool.h>
#include "maps.h"
#include "parse.h"
#include "netfilter.h"

/* Tunneled packets (VXLAN, RFC 7348). The kernel accepts them from any host that sends to its
 * port, on any interface. These checks require that the outer source is a known node, and that
 * the inner source belongs to that node. */

/* UDP port and VNI of the tunnel device; the port is 0 without tunnels. Set by the loader. */
const volatile __u32 tunnel_port;
const volatile __u32 tunnel_vni;

/* Nodes by underlay address. IPv4 uses the last four bytes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct addr6);
	__type(value, struct tunnel_node);
} tunnel_nodes SEC(".maps");

/* Nodes by the inner addresses that they may send from: their pod ranges and their own
 * addresses. */
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

/* Returns the node that owns an inner source address, or NULL. */
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

/* Returns the offset of the UDP header, 0 for another protocol, or a negative number if the
 * packet is malformed. A first fragment counts as a whole packet. */
static __always_inline int find_udp(const struct view *v, bool v6, bool *fragmented)
{
	struct fragment_header h;
	struct ipv6hdr ip6;
	struct iphdr ip4;
	__u32 offset = sizeof(ip6);
	__u8 next;

	*fragmented = false;
	if (!v6)
		return load(v, 0, &ip4, sizeof(ip4)) || ip4.ihl < 5 ? -1 : (ip4.protocol == IPPROTO_UDP ? ip4.ihl * 4 : 0);
	if (load(v, 0, &ip6, sizeof(ip6)))
		return -1;
	next = ip6.nexthdr;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (next == IPPROTO_UDP)
			return offset;
		if (next != IPPROTO_FRAGMENT && !skipped(next))
			return 0;
		if (load(v, offset, &h, sizeof(h)))
			return -1;
		if (next == IPPROTO_FRAGMENT) {
			if (h.offset & bpf_htons(IP6_OFFSET))
				return 0; /* receivers discard it without the first fragment */
			/* A second fragment header does not reset it. */
			if (h.offset & bpf_htons(IP6_MORE_FRAGMENTS))
				*fragmented = true;
		}
		offset += next == IPPROTO_FRAGMENT ? 8 : h.reserved * unit_of(next) + 8; /* the second byte is the length */
		next = h.next;
	}
	return -1;
}

/* Reports whether a packet goes to the underlay address of another node. */
static __always_inline bool to_tunnel_node(const struct view *v, bool v6)
{
	struct addr6 outer = {};

	return !load(v, v6 ? offsetof(struct ipv6hdr, daddr) : offsetof(struct iphdr, daddr), v6 ? outer.addr : outer.addr + 12, v6 ? 16 : 4) &&
		bpf_map_lookup_elem(&tunnel_nodes, &outer);
}

/* Reports whether a packet may enter a tunnel device: that of this host, or of another node to which
 * it is forwarded. It is not for that device, or its inner source belongs to the node that sent it. A
 * forwarded packet may be masqueraded later, and would then come from this node. */
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
		return !at || v->place != LOCAL_IN;
	if (load(v, at, &udp, sizeof(udp)) || udp.dest != bpf_htons(tunnel_port) || (v->place != LOCAL_IN && !to_tunnel_node(v, v6)))
		return true;
	if (fragmented)
		return false; /* nodes never send fragments, and the inner packet would escape
			       * the check */
	if (load(v, at + sizeof(udp), &vxlan, sizeof(vxlan)) || bpf_ntohl(vxlan.vni) >> 8 != tunnel_vni)
		return true; /* for another VXLAN device */
	if (load(v, v6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr), v6 ? outer.addr : outer.addr + 12, v6 ? 16 : 4))
		return false;
	node = bpf_map_lookup_elem(&tunnel_nodes, &outer);
	if (!node || load(v, at + sizeof(udp) + sizeof(vxlan), &eth, sizeof(eth)))
		return false;
	source = tunnel_source(v, at + sizeof(udp) + sizeof(vxlan) + sizeof(eth), eth.h_proto);
	return source && source->id == node->id;
}
