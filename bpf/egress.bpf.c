/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Egress policy behind the stack's translation of Service addresses: on the
 * netfilter hooks FORWARD and LOCAL_IN the destination is the one that packets
 * really go to, and the source is still the pod's. Here are decided the packets
 * that from_pod left a record of. The same program is there twice: for the hooks
 * themselves (Linux 6.4), and as a filter that a rule of nftables or iptables
 * matches with (xt_bpf). */

#include <linux/bpf.h>
#include <linux/netfilter.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "include/types.h"
#include "include/maps.h"
#include "include/parse.h"
#include "include/conntrack.h"
#include "include/verdict.h"
#include "include/translate.h"
#include "include/events.h"

/* What is read of the kernel's own structs. */
struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

struct nf_hook_state {
	struct net_device *in;
} __attribute__((preserve_access_index));

struct sk_buff {
	unsigned int len;
	__u32 mark;
} __attribute__((preserve_access_index));

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym __weak;

/* Set by the loader while programs of an older layout that leave no marks are on
 * interfaces of pods, and decide what passes these. */
const volatile bool handover;

/* A packet behind the translation. */
struct view {
	void *from; /* the context of the filter, or a dynptr */
	bool filter;
	__u32 mark;
	__u32 ifindex; /* that it came in by */
	__u32 len;
};

static __always_inline int load(const struct view *v, __u32 offset, void *to, __u32 size)
{
	if (v->filter)
		return bpf_skb_load_bytes_relative(v->from, offset, to, size, BPF_HDR_START_NET);
	return bpf_dynptr_read(to, size, v->from, offset, 0);
}

/* Ports at an offset; those of a later fragment are what the first one said. */
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

static __always_inline int load_flow4(const struct view *v, struct flow *f, const struct flow *was)
{
	struct iphdr ip;

	if (load(v, 0, &ip, sizeof(ip)) || ip.ihl < 5)
		return -1;
	f->src.word[3] = ip.saddr;
	f->dst.word[3] = ip.daddr;
	f->protocol = ip.protocol;
	return load_ports(v, ip.ihl * 4, f, was, ip.frag_off & bpf_htons(IP_OFFSET));
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

		if (later || (!fragment && f->protocol != IPPROTO_HOPOPTS && f->protocol != IPPROTO_ROUTING &&
			      f->protocol != IPPROTO_DSTOPTS))
			return load_ports(v, offset, f, was, later);
		if (load(v, offset, &h, sizeof(h)))
			return -1;
		f->protocol = h.next;
		later = fragment && h.offset & bpf_htons(IP6_OFFSET);
		offset += fragment ? 8 : h.reserved * 8 + 8; /* second byte: length */
	}
	return -1;
}

/* Notes what was decided on the entry of the flow as the pod knows it, so that
 * answers pass. Returns what to count, or -1. */
static __always_inline int note(const struct pending *r, const struct flow *to, const struct slot *slot,
				__u8 verdict, const struct view *v, bool v6)
{
	struct packet p = { .kind = r->kind, .closes = r->closes };
	struct conn_place at = {};
	struct conn *c, fresh = {};
	__u32 now = bpf_jiffies64();
	__u8 had;
	bool known;

	conn_place(&r->flow, &at, v6);
	c = conn_find(&at, r->flow.protocol, now, v6);
	if (!c) {
		if (verdict == DENY)
			return COUNT_EGRESS_DENY;
		fresh.side[0] = at.src ? 0 : SIDE_OPENED;
		fresh.side[1] = at.src ? SIDE_OPENED : 0;
		fresh.epoch[0] = fresh.epoch[1] = slot->epoch;
		fresh.flags = CONN_TRANSLATED;
		fresh.backend_port = to->dst_port;
		__builtin_memcpy(fresh.backend, &to->dst, sizeof(fresh.backend));
		fresh.packets[0] = !at.src;
		fresh.packets[1] = at.src;
		fresh.bytes[0] = at.src ? 0 : v->len;
		fresh.bytes[1] = at.src ? v->len : 0;
		fresh.seen = now;
		conn_create(&at, &fresh, v6);
		return COUNT_EGRESS_ALLOW;
	}
	had = OF_END(c->side, at.src);
	if (verdict == DENY) {
		if (!(had & SIDE_OPENED))
			return COUNT_EGRESS_DENY;
		/* What the pod was once reached by is not its own to open. */
		OF_END(c->side, at.src) = had | SIDE_REVOKED;
		OF_END(c->epoch, at.src) = slot->epoch;
		return r->kind == PACKET_OPENS ? COUNT_EGRESS_DENY : DROP_REVOKED;
	}
	known = (had & SIDE_OPENED) && !(had & SIDE_REVOKED) && (c->flags & CONN_TRANSLATED);
	c->flags = CONN_TRANSLATED;
	c->backend_port = to->dst_port;
	__builtin_memcpy(c->backend, &to->dst, sizeof(c->backend));
	if (OF_END(c->epoch, at.src) == slot->epoch && !(had & SIDE_REVOKED))
		OF_END(c->side, at.src) = had | SIDE_OPENED;
	else
		OF_END(c->side, at.src) = SIDE_OPENED;
	OF_END(c->epoch, at.src) = slot->epoch;
	conn_seen(c, &p, v->len, at.src, now);
	return known ? -1 : COUNT_EGRESS_ALLOW;
}

/* Counts a drop for a mark that is not ours, and tells of it. */
static __always_inline bool unmarked(const struct view *v, __u32 slot, const struct flow *flow, bool v6)
{
	count_bytes(v->len, DROP_UNMARKED);
	report(flow, slot, NULL, EVENT(DROP_UNMARKED, EVENT_EGRESS | (v6 ? EVENT_V6 : 0), 0), NULL);
	return false;
}

/* A flow past the stack that has the addresses and ports of a translated one
 * would be given its answers: it is over, or of a protocol that does not mind to
 * go through the stack from now on, where both are told apart. */
static __always_inline void reuse(const struct flow *to, bool v6)
{
	struct conn_place at = {};
	struct conn *c;

	conn_place(to, &at, v6);
	c = conn_find(&at, to->protocol, bpf_jiffies64(), v6);
	if (c && (c->flags & CONN_REMOTE) && (to->protocol != IPPROTO_TCP || c->state == CONN_CLOSING))
		c->flags &= ~CONN_REMOTE;
}

/* What the table of a slot says of where a packet really goes. */
static __always_inline __u8 ask(volatile __u64 *word, struct slot *slot, const struct flow *to, bool v6)
{
	__u32 stage;
	__u8 verdict;

	*(__u64 *)slot = *word;
	if (same(&to->src, &to->dst))
		return ALLOW; /* a pod always reaches itself */
	for (int i = 0; i < VERDICT_TRIES; i++) {
		stage = stage_now();
		*(__u64 *)slot = *word;
		verdict = table_says(slot->table, EGRESS, class_of(&to->dst, v6), to->protocol, to->dst_port);
		if (stage_now() == stage)
			return verdict;
	}
	return DENY;
}

/* Decides by the record of a packet. Returns whether it may go on. */
static __always_inline bool settle(const struct pending *r, const struct view *v, bool v6)
{
	struct flow to = {};
	struct slot slot = {};
	volatile __u64 *word = bpf_map_lookup_elem(&slots, &r->slot);
	bool translated;
	__u8 verdict;
	int id;

	if (!word || (v6 ? load_flow6(v, &to, &r->flow) : load_flow4(v, &to, &r->flow)) || !same(&to.src, &r->flow.src) ||
	    to.src_port != r->flow.src_port || to.protocol != r->flow.protocol)
		return unmarked(v, r->slot, &r->flow, v6);
	verdict = ask(word, &slot, &to, v6);
	id = note(r, &to, &slot, verdict, v, v6);
	if (id >= 0) {
		count_bytes(v->len, id);
		translated = !same(&to.dst, &r->flow.dst) || to.dst_port != r->flow.dst_port;
		report(&to, r->slot, &slot, EVENT(id, EVENT_EGRESS | (v6 ? EVENT_V6 : 0), 0), translated ? &r->flow : NULL);
	}
	if (verdict == ALLOW && (!same(&to.dst, &r->flow.dst) || to.dst_port != r->flow.dst_port))
		reuse(&to, v6);
	return verdict == ALLOW;
}

/* Whether a packet may go on. */
static __always_inline bool passes(const struct view *v)
{
	struct ifindex key = { .ifindex = v->ifindex };
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &key);
	__u32 place = v->mark >> 16;
	struct pending *r;
	__u8 version;

	if (!e)
		return true; /* from no pod */
	if ((v->mark & MARK_OURS) == MARK_APPROVED)
		return true;
	if (handover && !(v->mark & MARK_OURS))
		return true;
	r = bpf_map_lookup_elem(&pending, &place);
	if ((v->mark & MARK_KIND) != MARK_PENDING || !r || r->mark != (v->mark & MARK_OURS) || r->slot != e->slot ||
	    load(v, 0, &version, 1))
		return unmarked(v, e->slot, NULL, false);
	return version >> 4 == 6 ? settle(r, v, true) : settle(r, v, false);
}

SEC("netfilter")
int egress(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *skb = ctx->skb;
	struct net_device *in = ctx->state->in;
	struct bpf_dynptr packet;
	struct view v = { .from = &packet, .mark = skb->mark, .len = skb->len };

	if (!in)
		return NF_ACCEPT;
	v.ifindex = in->ifindex;
	if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &packet))
		return NF_DROP;
	return passes(&v) ? NF_ACCEPT : NF_DROP;
}

/* Matches what is to be dropped. */
SEC("socket")
int egress_filter(struct __sk_buff *skb)
{
	struct view v = { .from = skb, .filter = true, .mark = skb->mark, .ifindex = skb->ifindex, .len = skb->len };

	return !passes(&v);
}

char _license[] SEC("license") = "Dual BSD/GPL";
