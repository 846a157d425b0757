/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What is decided in the stack. Where it has translated the addresses of Services,
 * on the netfilter hooks FORWARD and LOCAL_IN (LOCAL_OUT for IPVS), the destination is
 * the one that packets really go to, and the source is still the pod's: here are
 * decided the packets that from_pod left a record of. Packets with an address of this
 * node or its pods that others forge are dropped on FORWARD, tunneled ones that do
 * not come from the node that they say on LOCAL_IN. The same is there in two forms: a
 * program for the hooks themselves (Linux 6.4), and a filter for each hook that a rule
 * of nftables matches with (xt_bpf). */

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
#include "include/ledger.h"
#include "include/owner.h"
#include "include/verdict.h"
#include "include/translate.h"
#include "include/view.h"
#include "include/tunnel.h"
#include "include/events.h"

/* What is read of the kernel's own structs. */
struct sk_buff {
	unsigned int len;
	__u32 mark;
	int skb_iif;
} __attribute__((preserve_access_index));

struct nf_hook_state {
	__u8 hook; /* enum nf_inet_hooks */
} __attribute__((preserve_access_index));

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym __weak;

/* Set by the loader while programs of an older layout that leave no marks are on
 * interfaces of pods, and decide what passes these. */
const volatile bool handover;

/* Takes back what the pod was allowed to open in the flow, as the pod knows it, if that
 * is known. Returns what to count. These are global functions: the verifier reads each
 * once, and their frames are not those of decide. */
__noinline int note_denied(const struct pending *r, const struct slot *slot, int v6)
{
	struct conn_place at = {};
	struct approval had;
	struct conn *c;

	if (!r || !slot)
		return COUNT_EGRESS_DENY;
	conn_place(&r->flow, &at, v6);
	c = conn_find(&at, r->flow.protocol, bpf_jiffies64(), v6);
	if (!c)
		return COUNT_EGRESS_DENY;
	had = approval_of(c, at.src);
	if (!(had.roles & ROLE_OPENED))
		return COUNT_EGRESS_DENY;
	/* What the pod was once reached by is not its own to open. */
	approve(c, at.src, had.roles | ROLE_REVOKED, slot->epoch);
	return r->kind == PACKET_OPENS ? COUNT_EGRESS_DENY : DROP_REVOKED;
}

/* Puts an allowed flow, as the pod knows it, into the table, so that answers pass; to is
 * where it really goes. Returns what to count, or less than 0. */
__noinline int note_allowed(const struct pending *r, const struct flow *to, const struct slot *slot, __u32 len, int v6)
{
	struct packet p = {};
	struct conn_place *at = &p.at;
	struct conn *c, fresh = {};
	__u32 now = bpf_jiffies64();
	struct approval had;
	bool known;

	if (!r || !to || !slot)
		return -1;
	conn_place(&r->flow, at, v6);
	c = conn_find(at, r->flow.protocol, now, v6);
	if (!c) {
		fresh.end[0] = approval(at->src ? 0 : ROLE_OPENED, slot->epoch);
		fresh.end[1] = approval(at->src ? ROLE_OPENED : 0, slot->epoch);
		fresh.flow_flags = CONN_TRANSLATED | CONN_OUTSIDE;
		fresh.share = r->slot;
		fresh.backend_port = to->dst_port;
		__builtin_memcpy(fresh.backend, &to->dst, sizeof(fresh.backend));
		fresh.sent[0] = !at->src;
		fresh.sent[1] = at->src;
		fresh.seen = now;
		if (v6 ? conn_put(at, &fresh, true) : conn_put(at, &fresh, false))
			count_bytes(len, COUNT_UNTRACKED);
		return COUNT_EGRESS_ALLOW;
	}
	had = approval_of(c, at->src);
	known = (had.roles & ROLE_OPENED) && holds(had) && (c->flow_flags & CONN_TRANSLATED);
	clear_flags(c, CONN_DIRECT | CONN_REMOTE);
	set_flags(c, CONN_TRANSLATED | CONN_OUTSIDE);
	c->backend_port = to->dst_port;
	__builtin_memcpy(c->backend, &to->dst, sizeof(c->backend));
	if (had.epoch != slot->epoch || !holds(had))
		had.roles = 0;
	approve(c, at->src, had.roles | ROLE_OPENED, slot->epoch);
	p.kind = r->kind;
	conn_seen(c, &p, at->src, true, now);
	return known ? -1 : COUNT_EGRESS_ALLOW;
}

/* Whether a translated answer goes to the client that the node masquerades: its
 * address is put back. */
__noinline int answers_client(const struct pending *r, const struct flow *to, int v6)
{
	struct conn_place at = {};
	struct conn *c;
	struct ip client;

	if (!r || !to)
		return false;
	conn_place(&r->flow, &at, v6);
	c = conn_find(&at, r->flow.protocol, bpf_jiffies64(), v6);
	if (!c || !(c->flow_flags & CONN_MASQUERADED))
		return false;
	__builtin_memcpy(&client, c->client, sizeof(client));
	return same(&client, &to->dst);
}

/* A flow past the stack that has the addresses and ports of a translated one
 * would be given its answers: it is over, or of a protocol that does not mind to
 * go through the stack from now on, where both are told apart. Returns 0. */
__noinline int reuse(const struct flow *to, int v6)
{
	struct conn_place at = {};
	struct conn *c;

	if (!to)
		return 0;
	conn_place(to, &at, v6);
	c = conn_find(&at, to->protocol, bpf_jiffies64(), v6);
	if (c && (to->protocol != IPPROTO_TCP || c->state == CONN_CLOSING))
		clear_flags(c, CONN_REMOTE);
	return 0;
}

/* What the table of a slot's pod says of where a packet really goes; slot becomes what
 * it was asked under. Returns less than 0 if there is no such slot. A global function:
 * the verifier reads its loop once. */
__noinline int ask(__u32 index, struct slot *slot, const struct flow *to, int v6)
{
	volatile __u64 *word = bpf_map_lookup_elem(&slots, &index);
	struct ip dst;
	__u32 stage;
	__u8 verdict;

	if (!word || !slot || !to)
		return -1;
	dst = to->dst; /* on the stack, as Linux 6.1 wants keys */
	*(__u64 *)slot = *word;
	if (same(&to->src, &to->dst))
		return ALLOW; /* a pod always reaches itself */
	for (int i = 0; i < VERDICT_TRIES; i++) {
		stage = stage_now();
		*(__u64 *)slot = *word;
		verdict = table_says(slot->table, EGRESS, class_of(&dst, v6), to->protocol, to->dst_port);
		if (stage_now() == stage)
			return verdict;
	}
	return DENY;
}

/* Counts a drop that is about no policy, and emits an event. Returns false. */
static __always_inline bool refuse(const struct view *v, __u32 slot, const struct flow *flow, bool v6, __u32 reason)
{
	__u32 egress = slot != NO_SLOT ? EVENT_EGRESS : 0;

	count_bytes(v->len, reason);
	report(flow, slot, NULL, EVENT(reason, egress | (v6 ? EVENT_V6 : 0), 0), NULL);
	return false;
}

/* Decides by the record of a packet. Returns whether it may go on. */
static __always_inline bool decide(const struct pending *r, const struct view *v, bool v6)
{
	struct flow to = {};
	struct slot slot = {};
	struct end service = {};
	bool translated;
	int verdict, id;

	if ((v6 ? load_flow6(v, &to, &r->flow) : load_flow4(v, &to, &r->flow)) || !same(&to.src, &r->flow.src) ||
	    to.src_port != r->flow.src_port || to.protocol != r->flow.protocol)
		return refuse(v, r->slot, &r->flow, v6, DROP_UNMARKED);
	if (tunnel_port && to.protocol == IPPROTO_UDP && to.dst_port == tunnel_port)
		return refuse(v, r->slot, &to, v6, DROP_TUNNEL);
	translated = !same(&to.dst, &r->flow.dst) || to.dst_port != r->flow.dst_port;
	if (r->kind == PACKET_ANSWER && (!translated || answers_client(r, &to, v6)))
		return true;
	verdict = ask(r->slot, &slot, &to, v6);
	if (verdict < 0)
		return refuse(v, r->slot, &r->flow, v6, DROP_UNMARKED);
	id = verdict == ALLOW ? note_allowed(r, &to, &slot, v->len, v6) : note_denied(r, &slot, v6);
	if (id >= 0) {
		service.addr = r->flow.dst;
		service.port = r->flow.dst_port;
		count_bytes(v->len, id);
		report(&to, r->slot, &slot, EVENT(id, EVENT_EGRESS | (v6 ? EVENT_V6 : 0), 0), translated ? &service : NULL);
	}
	if (verdict == ALLOW && translated)
		reuse(&to, v6);
	return verdict == ALLOW;
}

/* Whether a packet of a pod may go on. */
static __always_inline bool pod_passes(const struct view *v, const struct endpoint *e, bool v6)
{
	__u32 place = v->mark >> 16;
	struct pending *r;

	if ((v->mark & MARK_OURS) == MARK_APPROVED)
		return true;
	if (handover && !(v->mark & MARK_OURS))
		return true;
	r = bpf_map_lookup_elem(&pending, &place);
	if ((v->mark & MARK_KIND) != MARK_PENDING || !r || r->mark != (v->mark & MARK_OURS) || r->slot != e->slot)
		return refuse(v, e->slot, NULL, v6, DROP_UNMARKED);
	return v6 ? decide(r, v, true) : decide(r, v, false);
}

/* Whether another sender's packet may be forwarded: it must not claim to come from
 * this node or its pods. What the node masquerades still has its own source here. */
static __always_inline bool may_forward(const struct view *v, bool v6)
{
	struct flow flow = {};

	if (load(v, v6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr), v6 ? &flow.src.word[0] : &flow.src.word[3], v6 ? 16 : 4))
		return false;
	return owner_of(&flow.src, v6) ? refuse(v, NO_SLOT, &flow, v6, DROP_SPOOFED) : true;
}

/* Whether a packet may go on. */
static __always_inline bool passes(const struct view *v, bool v6)
{
	const struct endpoint *e = find_endpoint(v->ifindex);

	if (e)
		return pod_passes(v, e, v6);
	switch (v->place) {
	case FORWARD:
		return may_forward(v, v6);
	case LOCAL_IN:
		return may_enter(v, v6) ? true : refuse(v, NO_SLOT, NULL, v6, DROP_TUNNEL);
	case LOCAL_OUT:
		break;
	}
	return true;
}

/* Where a packet is, by its hook. */
static __always_inline enum place place_of(const struct nf_hook_state *state)
{
	switch (state->hook) {
	case NF_INET_FORWARD:
		return FORWARD;
	case NF_INET_LOCAL_IN:
		return LOCAL_IN;
	}
	return LOCAL_OUT;
}

/* One program for all hooks: the verifier takes as long for it as for one of them. */
SEC("netfilter")
int hook(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *skb = ctx->skb;
	struct bpf_dynptr packet;
	struct view v = { .from = &packet, .place = place_of(ctx->state), .mark = skb->mark, .ifindex = skb->skb_iif, .len = skb->len };
	__u8 version;

	if (!v.ifindex)
		return NF_ACCEPT; /* of this host */
	if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &packet) || load(&v, 0, &version, 1))
		return NF_DROP;
	return (version >> 4 == 6 ? passes(&v, true) : passes(&v, false)) ? NF_ACCEPT : NF_DROP;
}

/* Matches what is to be dropped. */
static __always_inline int matches(struct __sk_buff *skb, enum place place)
{
	struct view v = { .from = skb, .filter = true, .place = place, .mark = skb->mark, .ifindex = skb->ingress_ifindex, .len = skb->len };
	__u8 version;

	if (!v.ifindex)
		return false;
	if (load(&v, 0, &version, 1))
		return true;
	return version >> 4 == 6 ? !passes(&v, true) : !passes(&v, false);
}

SEC("socket")
int forward_filter(struct __sk_buff *skb)
{
	return matches(skb, FORWARD);
}

SEC("socket")
int local_in_filter(struct __sk_buff *skb)
{
	return matches(skb, LOCAL_IN);
}

SEC("socket")
int local_out_filter(struct __sk_buff *skb)
{
	return matches(skb, LOCAL_OUT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
