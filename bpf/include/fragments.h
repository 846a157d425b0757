/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "pod_context.h"

/* Fragments. The first fragment of a datagram has the ports and is decided like any packet. If
 * it passes, its ports are stored for the later fragments. Each pod has its own entries for
 * each direction, so that no other pod can evict them. */

/* How long later fragments may follow, in jiffies, set by the loader. Receivers wait equally
 * long. */
const volatile __u32 timeout_datagram;

static __always_inline struct datagram *datagram_place(const struct pod_ctx *l, const struct packet *p)
{
	__u32 index = (l->index * 2 + l->from_pod) * DATAGRAMS + (p->v6 ? bpf_ntohl(p->id) : bpf_ntohs(p->id)) % DATAGRAMS;

	return bpf_map_lookup_elem(&datagrams, &index);
}

/* Stores the ports of a first fragment that passes. Returns 0. */
__noinline int store_fragment(const struct pod_ctx *l, const struct packet *p)
{
	struct datagram *d;

	if (!l || !p)
		return 0;
	d = datagram_place(l, p);
	if (!d)
		return 0;
	__builtin_memcpy(d->src, &p->flow.src, sizeof(d->src));
	__builtin_memcpy(d->dst, &p->flow.dst, sizeof(d->dst));
	d->id = p->id;
	d->protocol = p->flow.protocol;
	d->src_port = p->flow.src_port;
	d->dst_port = p->flow.dst_port;
	d->seen = bpf_jiffies64();
	return 0;
}

/* Gives a later fragment the ports of the first one. Returns false if the first one did not
 * pass. */
__noinline int find_fragment(const struct pod_ctx *l, struct packet *p)
{
	struct datagram *d;
	struct ip src, dst;

	if (!l || !p)
		return false;
	d = datagram_place(l, p);
	if (!d || (__u32)bpf_jiffies64() - d->seen > timeout_datagram)
		return false;
	__builtin_memcpy(&src, d->src, sizeof(src));
	__builtin_memcpy(&dst, d->dst, sizeof(dst));
	if (d->id != p->id || d->protocol != p->flow.protocol || !same(&src, &p->flow.src) || !same(&dst, &p->flow.dst))
		return false;
	p->flow.src_port = d->src_port;
	p->flow.dst_port = d->dst_port;
	return true;
}
