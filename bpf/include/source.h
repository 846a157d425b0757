/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "owner.h"
#include "nf_conntrack.h"
#include "fastpath.h"

/* The real source of a packet that the host stack brings to a pod. The source address alone
 * proves nothing. The packet must arrive by the interface that leads to this address. Packets
 * from processes of this node arrive by no interface; these may be masqueraded, too. */

/* Reports whether packets from an address that is not on this node may arrive by a device. */
__noinline int may_arrive_by(const struct ip *src, int v6, __u32 device)
{
	struct node_route *route;

	if (!src || owner_of(src, v6))
		return false;
	route = find_node_route(src, v6);
	return !route || route->ifindex == device;
}

/* Finds the real source of a packet. Returns ACT_PASS, or DROP_SPOOFED if the source cannot
 * arrive by this interface. */
__noinline enum outcome find_source(struct __sk_buff *skb, const struct packet *p, struct pod_ctx *l)
{
	const struct endpoint *from;
	struct end sender;
	struct ip pod = {};
	const struct ip *src;
	__u32 device;
	bool exchanged;

	if (!p || !l)
		return DROP_SPOOFED;
	device = l->device;
	l->host = !device;
	l->masqueraded = false;
	if (!device) {
		if (p->kind != PACKET_ERROR)
			find_translated_source(skb, p, l);
		return ACT_PASS;
	}
	src = &p->flow.src;
	from = find_endpoint(device);
	if (from)
		pod = address_of(from, p->v6);
	/* The host stack replaces sources: it uses addresses of the node for masquerading, and
	 * addresses of Services in place of the pods of this node that answer. */
	exchanged = from ? !same(src, &pod) && !is_further(from, src, p->v6) : owner_of(src, p->v6) == OWNER_NODE;
	if (exchanged) {
		if (!find_translated_source(skb, p, l))
			return DROP_SPOOFED;
		load_sender(skb, &sender);
		src = &sender.addr;
	} else if (from && p->kind != PACKET_ERROR) {
		find_translated_source(skb, p, l); /* it may have another port */
	}
	if (device == DEVICE_LOST)
		return ACT_PASS; /* the program on FORWARD has compared the source and the device */
	return (from ? same(src, &pod) || is_further(from, src, p->v6) : may_arrive_by(src, p->v6, device)) ? ACT_PASS : DROP_SPOOFED;
}
