/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Policy on the host's side of a pod's veth pair: from_pod at tcx ingress sees
 * what the pod sends, to_pod at tcx egress what it is about to receive. A
 * packet passes when the pod's end of its flow has a role under the policy in
 * force, or gets one now. */

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "include/types.h"
#include "include/maps.h"
#include "include/parse.h"
#include "include/conntrack.h"
#include "include/verdict.h"

/* Other programs on the hook come next, then the stack. */
#define PASS TC_ACT_UNSPEC

static __always_inline int drop(struct __sk_buff *skb, __u32 reason)
{
	count(skb, reason);
	return TC_ACT_SHOT;
}

/* The pod's end of a packet. */
struct local {
	const struct endpoint *endpoint;
	struct slot slot;
	bool from_pod;
};

/* Asks the endpoint's table about the flow of a packet, as if it were new. */
static __always_inline __u8 ask(const struct local *l, const struct packet *p, enum direction dir, bool v6)
{
	const struct ip *remote = l->from_pod ? &p->flow.dst : &p->flow.src;
	__u16 remote_port = l->from_pod ? p->flow.dst_port : p->flow.src_port;
	__u16 own_port = l->from_pod ? p->flow.src_port : p->flow.dst_port;

	return table_says(l->slot.table, dir, remote, p->flow.protocol, dir == EGRESS ? remote_port : own_port, v6);
}

/* A flow that the pod had a role in under an older epoch: which roles does the
 * policy in force leave? Both ends of it are asked as they were at first. */
static __always_inline int confirm(struct __sk_buff *skb, const struct local *l, const struct packet *p,
				   struct conn *c, bool side, bool v6)
{
	__u8 had = OF_END(c->side, side) & (SIDE_OPENED | SIDE_ACCEPTED), kept = 0;

	if ((had & SIDE_OPENED) && ask(l, p, EGRESS, v6))
		kept |= SIDE_OPENED;
	if ((had & SIDE_ACCEPTED) && ask(l, p, INGRESS, v6))
		kept |= SIDE_ACCEPTED;
	/* Without a role left the flow stays known, so that packets still on
	 * their way are not taken for a new one. */
	OF_END(c->side, side) = kept ? kept : had | SIDE_REVOKED;
	OF_END(c->epoch, side) = l->slot.epoch;
	return kept ? 0 : DROP_REVOKED;
}

/* A new flow, or a new role in a known one: the pod opens it, or is reached.
 * Packets that open were asked about before the flow was looked for. */
static __always_inline int decide(struct __sk_buff *skb, const struct local *l, const struct packet *p,
				  struct conn_place *at, struct conn *c, bool v6)
{
	enum direction dir = l->from_pod ? EGRESS : INGRESS;
	__u8 role = l->from_pod ? SIDE_OPENED : SIDE_ACCEPTED;
	bool side = l->from_pod ? at->src : !at->src;
	__u8 verdict = p->kind == PACKET_OPENS ? ALLOW : ask(l, p, dir, v6);
	struct conn fresh = {};

	count(skb, dir * 2 + verdict);
	if (verdict == DENY)
		return -1; /* counted */
	if (c) {
		if (OF_END(c->epoch, side) == l->slot.epoch && !(OF_END(c->side, side) & SIDE_REVOKED))
			role |= OF_END(c->side, side);
		OF_END(c->side, side) = role;
		OF_END(c->epoch, side) = l->slot.epoch;
		return 0;
	}
	/* Both ends are written: the verifier knows no variable stack offsets. */
	fresh.side[0] = side ? 0 : role;
	fresh.side[1] = side ? role : 0;
	fresh.epoch[0] = fresh.epoch[1] = l->slot.epoch;
	fresh.packets[0] = !at->src;
	fresh.packets[1] = at->src;
	fresh.bytes[0] = at->src ? 0 : skb->len;
	fresh.bytes[1] = at->src ? skb->len : 0;
	fresh.seen = bpf_jiffies64();
	conn_create(at, &fresh, v6);
	return 0;
}

/* Returns 0 to let the packet pass, a reason to drop it, or -1 if the drop has
 * been counted. */
static __always_inline int track(struct __sk_buff *skb, const struct local *l, const struct packet *p, bool v6)
{
	enum direction dir = l->from_pod ? EGRESS : INGRESS;
	__u8 wanted = l->from_pod ? SIDE_OPENED : SIDE_ACCEPTED;
	struct conn_place at = {};
	__u32 now = bpf_jiffies64();
	struct conn *c;
	bool side;
	__u8 flags;
	int err = 0;

	/* Whatever the flow was before: what is refused costs no more. */
	if (p->kind == PACKET_OPENS && ask(l, p, dir, v6) == DENY) {
		count(skb, dir * 2 + DENY);
		return -1;
	}
	conn_place(&p->flow, &at, v6);
	c = conn_find(&at, p->flow.protocol, now, v6);
	if (!c)
		return decide(skb, l, p, &at, NULL, v6);
	side = l->from_pod ? at.src : !at.src;
	flags = OF_END(c->side, side);
	if (p->kind == PACKET_OPENS) {
		/* Being reached by a flow gives no right to open its reverse. */
		if (!(flags & wanted) || (flags & SIDE_REVOKED) || OF_END(c->epoch, side) != l->slot.epoch)
			err = decide(skb, l, p, &at, c, v6);
	} else if (!flags) {
		err = decide(skb, l, p, &at, c, v6);
	} else if (OF_END(c->epoch, side) != l->slot.epoch) {
		err = confirm(skb, l, p, c, side, v6);
	} else if (flags & SIDE_REVOKED) {
		err = DROP_REVOKED;
	}
	if (!err)
		conn_seen(c, p, skb->len, at.src, now);
	return err;
}

/* An ICMP error passes if the flow that it quotes is one that the pod has a
 * role in; otherwise it is a flow of its own protocol. */
static __always_inline int track_error(struct __sk_buff *skb, const struct local *l, const struct packet *p, bool v6)
{
	enum direction dir = l->from_pod ? EGRESS : INGRESS;
	struct conn_place at = {};
	struct conn *c = NULL;
	__u8 flags, verdict;

	if (p->inner.protocol) {
		conn_place(&p->inner, &at, v6);
		c = conn_find(&at, p->inner.protocol, bpf_jiffies64(), v6);
	}
	if (c) {
		/* The pod quotes what it received, and is sent what it sent. */
		flags = OF_END(c->side, l->from_pod ? !at.src : at.src);
		if (flags && !(flags & SIDE_REVOKED))
			return 0;
	}
	verdict = ask(l, p, dir, v6);
	count(skb, dir * 2 + verdict);
	return verdict == ALLOW ? 0 : -1;
}

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

/* A pod sends with its own addresses only; neighbour discovery may also use
 * its link-local address, or none yet. */
static __always_inline bool spoofed(const struct endpoint *e, const struct packet *p, bool v6)
{
	struct ip own = {};

	if (v6)
		__builtin_memcpy(&own, e->ip6, 16);
	else
		__builtin_memcpy(&own.word[3], e->ip4, 4);
	if (v6 && p->kind == PACKET_NEIGHBOUR && (link_local(&p->flow.src) || unspecified(&p->flow.src)))
		return false;
	return unspecified(&own) || !same(&p->flow.src, &own);
}

static __always_inline int police_ip(struct __sk_buff *skb, struct local *l, struct cursor *c, bool v6)
{
	struct packet p = {};
	int err = v6 ? parse_ip6(c, &p) : parse_ip4(c, &p);
	__u64 *slot;

	if (err)
		return drop(skb, -err);
	if (l->from_pod && spoofed(l->endpoint, &p, v6))
		return drop(skb, DROP_SPOOFED);
	if (p.kind == PACKET_NEIGHBOUR)
		return PASS;
	if (p.kind == PACKET_ROUTER)
		return l->from_pod ? drop(skb, DROP_NEIGHBOUR) : PASS;
	if (same(&p.flow.src, &p.flow.dst))
		return PASS; /* a pod always reaches itself */
	slot = bpf_map_lookup_elem(&slots, &l->endpoint->slot);
	if (!slot)
		return drop(skb, DROP_NO_ENDPOINT);
	*(__u64 *)&l->slot = *(volatile __u64 *)slot;
	err = p.kind == PACKET_ERROR ? track_error(skb, l, &p, v6) : track(skb, l, &p, v6);
	if (err > 0)
		return drop(skb, err);
	return err ? TC_ACT_SHOT : PASS;
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return *(__u32 *)a == *(__u32 *)b && *(__u16 *)(a + 4) == *(__u16 *)(b + 4);
}

static __always_inline int police(struct __sk_buff *skb, bool from_pod)
{
	struct ifindex key = { .ifindex = skb->ifindex };
	struct local l = { .from_pod = from_pod };
	__u32 headers = skb->len < MAX_HEADERS ? skb->len : MAX_HEADERS;
	struct cursor c;
	struct ethhdr *eth;

	l.endpoint = bpf_map_lookup_elem(&endpoints, &key);
	if (!l.endpoint)
		return drop(skb, DROP_NO_ENDPOINT);
	if (skb->data + headers > skb->data_end)
		bpf_skb_pull_data(skb, headers);
	c.pos = (void *)(long)skb->data;
	c.end = (void *)(long)skb->data_end;
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return drop(skb, DROP_MALFORMED);
	if (from_pod && !same_mac(eth->h_source, l.endpoint->mac))
		return drop(skb, DROP_SPOOFED);
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return police_ip(skb, &l, &c, false);
	case bpf_htons(ETH_P_IPV6):
		return police_ip(skb, &l, &c, true);
	case bpf_htons(ETH_P_ARP):
		return PASS;
	}
	return drop(skb, DROP_NOT_IP);
}

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	return police(skb, true);
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	return police(skb, false);
}

/* Reading skb metadata and LRU maps is GPL-free, but kernels ask for the word. */
char _license[] SEC("license") = "Dual BSD/GPL";
