/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Policy on the host's side of a pod's veth pair: from_pod at tcx ingress sees
 * what the pod sends, to_pod at tcx egress what it is about to receive from the
 * stack. A packet passes when the pod's end of its flow has a role under the
 * policy in force, or gets one now. From pod to pod of this node from_pod
 * decides for both ends and delivers. To pods of other nodes it sends on, and
 * from_node, at tcx ingress of the devices that lead there, decides and delivers
 * what comes back. */

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "include/conntrack.h"
#include "include/parse.h"
#include "include/translate.h"
#include "include/local.h"
#include "include/ask.h"
#include "include/roles.h"
#include "include/open.h"
#include "include/direct.h"
#include "include/arrive.h"

/* Other programs on the hook come next, then the stack. */
#define PASS TC_ACT_UNSPEC

/* Asks about a packet that opens a flow before that is looked for: whatever it
 * was before, what is refused costs no more. */
static __always_inline int ask_first(struct __sk_buff *skb, struct local *l, const struct packet *p, __u32 stage, bool v6)
{
	enum direction dir = l->from_pod ? EGRESS : INGRESS;
	__u32 peer = class_of(l->from_pod ? &p->flow.dst : &p->flow.src, v6);
	int verdict;

	if (l->from_pod && !(peer & PEER_POD) && translatable(p))
		return FATE_PENDING;
	verdict = table_says(l->slot.table, dir, peer, p->flow.protocol, p->flow.dst_port);
	if (stage_now() != stage)
		verdict = ask(l, p, dir);
	if (verdict == DENY) {
		if (event_limited(&l->index, dir * 2 + DENY))
			count(skb, dir * 2 + DENY);
		else
			drop(skb, l, p, dir * 2 + DENY);
		return FATE_DENIED;
	}
	l->asked = true;
	return FATE_PASS;
}

/* Decides a packet of a flow, and where it goes: the pod at the other end is
 * peer if that is FATE_DIRECT. */
static __always_inline int track(struct __sk_buff *skb, struct local *l, const struct packet *p, struct local *peer, bool v6)
{
	struct conn_place at = {};
	__u32 now = bpf_jiffies64();
	struct conn *c;
	__u32 stage = p->kind == PACKET_OPENS ? stage_now() : 0; /* before anything is looked up */
	bool side;
	int err;

	if (!read_slot(l))
		return DROP_NO_ENDPOINT;
	if (p->kind == PACKET_OPENS) {
		err = ask_first(skb, l, p, stage, v6);
		if (err)
			return err;
	}
	conn_place(&p->flow, &at, v6);
	c = conn_find(&at, p->flow.protocol, now, v6);
	if (!c) {
		if (l->from_pod && !l->asked && translatable(p) && !(class_of_address(&p->flow.dst, v6) & PEER_POD))
			return FATE_PENDING;
		return open_flow(skb, l, p, peer);
	}
	side = l->from_pod ? at.src : !at.src;
	/* The ports of a flow that was direct are used again, by one that was
	 * translated: answers have to go back the same way. */
	if (!l->from_pod && p->kind == PACKET_OPENS && c->state == CONN_CLOSING)
		c->flags &= ~(CONN_DIRECT | CONN_REMOTE);
	if (!l->from_pod && p->flow.protocol == IPPROTO_UDP)
		c->flags &= ~CONN_REMOTE; /* what the stack brings may be translated */
	if (pends(l, p, c, side))
		return FATE_PENDING;
	err = admit(skb, l, p, c, side);
	if (!err && l->from_pod && (c->flags & CONN_DIRECT)) {
		err = admit_peer(skb, peer, p, c, !side);
	} else if (!err && l->from_pod && (c->flags & CONN_REMOTE)) {
		peer->index = OF_END(c->slot, !side);
		err = FATE_REMOTE;
	}
	if (err == FATE_PASS || err == FATE_DIRECT || err == FATE_REMOTE)
		conn_seen(c, p, skb->len, at.src, now);
	return err;
}

/* An ICMP error passes if the flow that it quotes is one that the pod has a
 * role in; otherwise it is a flow of its own protocol. */
__noinline int track_error(struct __sk_buff *skb, const struct local *l, const struct packet *p, struct local *peer)
{
	struct conn_place at = {};
	struct conn *c = NULL;
	__u8 flags;

	if (!l || !p || !peer)
		return FATE_DENIED;
	if (p->inner.protocol) {
		conn_place(&p->inner, &at, p->v6);
		c = conn_find(&at, p->inner.protocol, bpf_jiffies64(), p->v6);
	}
	if (c) {
		/* The pod quotes what it received, and is sent what it sent. */
		flags = OF_END(c->side, l->from_pod ? !at.src : at.src);
		if (flags && !(flags & SIDE_REVOKED)) {
			if (!l->from_pod)
				return FATE_PASS;
			if (error_is_direct(p, c, peer, at.src, CONN_DIRECT))
				return FATE_DIRECT;
			return (c->flags & CONN_REMOTE) && same(&p->flow.dst, &p->inner.src) ? FATE_REMOTE : FATE_PASS;
		}
	}
	return judge(skb, l, p) == ALLOW ? FATE_PASS : FATE_DENIED;
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

/* Sends a pod's packet to the pod at the other end, or leaves it to the stack to
 * be decided. fate may also be why it is dropped. */
static __always_inline int send(struct __sk_buff *skb, const struct local *l, const struct packet *p, const struct local *peer, int fate)
{
	switch (fate) {
	case FATE_DIRECT:
		return deliver(skb, peer, p);
	case FATE_REMOTE:
		return forward(skb, p, peer->index);
	case FATE_PENDING:
		skb->mark = leave_record(p, l->index);
		return PASS;
	}
	return drop(skb, l, p, fate);
}

static __always_inline int police_ip(struct __sk_buff *skb, struct local *l, const struct endpoint *e, bool v6, bool from_pod)
{
	void *at = (void *)(long)skb->data + sizeof(struct ethhdr), *end = (void *)(long)skb->data_end;
	struct packet p = { .v6 = v6 };
	struct local peer = {};
	int err = parse_plain(at, end, &p, v6) ? 0 : parse_any(skb, &p, v6);

	if (err)
		return drop(skb, l, &p, -err);
	if (from_pod && spoofed(e, &p, v6))
		return drop(skb, l, &p, DROP_SPOOFED);
	if (p.kind == PACKET_NEIGHBOUR)
		return PASS;
	if (p.kind == PACKET_ROUTER)
		return from_pod ? drop(skb, l, &p, DROP_NEIGHBOUR) : PASS;
	if (same(&p.flow.src, &p.flow.dst))
		return PASS; /* a pod always reaches itself */
	err = p.kind == PACKET_ERROR ? track_error(skb, l, &p, &peer) : track(skb, l, &p, &peer, v6);
	switch (err) {
	case FATE_PASS:
		return PASS;
	case FATE_DENIED:
		return TC_ACT_SHOT;
	}
	/* to_pod has to be without code that writes: see deliver. */
	return from_pod ? send(skb, l, &p, &peer, err) : drop(skb, l, &p, err);
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return *(__u32 *)a == *(__u32 *)b && *(__u16 *)(a + 4) == *(__u16 *)(b + 4);
}

static __always_inline int police(struct __sk_buff *skb, bool from_pod)
{
	struct local l = { .index = NO_SLOT, .from_pod = from_pod };
	struct ethhdr *eth = (void *)(long)skb->data; /* linear, or the kernel could not have read it */
	const struct endpoint *e = find_endpoint(skb->ifindex);

	if (!e)
		return drop(skb, &l, NULL, DROP_NO_ENDPOINT);
	l.index = e->slot;
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return drop(skb, &l, NULL, DROP_MALFORMED);
	if (from_pod && !same_mac(eth->h_source, e->mac))
		return drop(skb, &l, NULL, DROP_SPOOFED);
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return police_ip(skb, &l, e, false, from_pod);
	case bpf_htons(ETH_P_IPV6):
		return police_ip(skb, &l, e, true, from_pod);
	case bpf_htons(ETH_P_ARP):
		return PASS;
	}
	return drop(skb, &l, NULL, DROP_NOT_IP);
}

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	skb->mark = MARK_APPROVED; /* unless it is said otherwise */
	return police(skb, true);
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	return police(skb, false);
}

SEC("tc")
int from_node(struct __sk_buff *skb)
{
	switch (skb->protocol) {
	case bpf_htons(ETH_P_IP):
		return arrive(skb, false);
	case bpf_htons(ETH_P_IPV6):
		return arrive(skb, true);
	}
	return PASS;
}

/* Reading skb metadata and LRU maps is GPL-free, but kernels ask for the word. */
char _license[] SEC("license") = "Dual BSD/GPL";
