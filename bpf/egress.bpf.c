/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Policy in the host stack, on the netfilter hooks FORWARD and LOCAL_IN (LOCAL_OUT for IPVS).
 * There, DNAT has replaced Service addresses with those of backends, and the source is still
 * the pod. The programs decide the packets that from_pod stored a record of. On FORWARD they
 * also drop packets with forged addresses of this node or its pods, on PRE_ROUTING those with
 * forged addresses of its pods. They drop tunneled packets to this or another node whose inner
 * source does not belong to the node that sent them. The code exists in two forms: a netfilter program (Linux 6.4), and a socket
 * filter for each hook that an nftables rule matches with (xt_bpf). */

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
#include "include/policy.h"
#include "include/post_dnat.h"
#include "include/post_dnat_flow.h"
#include "include/netfilter.h"
#include "include/tunnel.h"
#include "include/events.h"

/* The fields of kernel structs that the programs read. CO-RE adjusts the offsets. */
struct sk_buff {
	unsigned int len;
	__u32 mark;
	int skb_iif;
} __attribute__((preserve_access_index));

struct nf_hook_state {
	__u8 hook; /* enum nf_inet_hooks */
	__u8 pf;   /* NFPROTO_IPV4 or NFPROTO_IPV6 */
} __attribute__((preserve_access_index));

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym __weak;

/* Whether programs of an older layout, which set no marks, are still attached to interfaces of
 * pods and decide the packets there. Set by the loader. */
const volatile bool handover;

/* Whether the node observes all its pods. Set by the loader. */
const volatile bool observe_node;

/* No verdict, because the slot does not exist. */
#define NO_VERDICT -1

/* The packet goes to the host by a broadcast or anycast address. */
#define TO_BROADCAST -2

/* An agent changed the maps meanwhile. */
#define CHANGED -3

/* Returns the decision of the table in a slot on the destination after DNAT. slot becomes the
 * table and epoch of that verdict. Returns NO_VERDICT if the slot does not exist, CHANGED if the verdict may
 * mix two states. here says that the packet may be for this host. A global function, so that the verifier
 * checks it once, and not for each try. */
__noinline int evaluate_once(__u32 index, struct slot *slot, const struct flow *to, int v6, int here)
{
	volatile __u64 *word = bpf_map_lookup_elem(&slots, &index);
	struct ip dst;
	__u32 generation;
	int decision;

	if (!word || !slot || !to)
		return NO_VERDICT;
	dst = to->dst; /* Linux 6.1 accepts map keys only from the stack */
	generation = current_generation();
	*(__u64 *)slot = *word;
	if (same(&to->src, &to->dst))
		return DECISION(ALLOW, CAUSE_SELF + EGRESS); /* a pod always reaches itself */
	if (here && is_broadcast(&dst, v6))
		return TO_BROADCAST;
	decision = table_verdict(slot->table, EGRESS, class_of(&dst, v6), to->protocol, to->dst_port);
	return current_generation() == generation ? decision : CHANGED;
}

/* Returns the decision of evaluate_once, as soon as it is not CHANGED. */
static __always_inline int evaluate(__u32 index, struct slot *slot, const struct flow *to, bool v6, bool here)
{
	int decision = CHANGED;

	for (int i = 0; i < VERDICT_TRIES && decision == CHANGED; i++)
		decision = evaluate_once(index, slot, to, v6, here);
	return decision == CHANGED ? DENY : decision;
}

/* Reports whether the pod of a slot is observed, or with NO_SLOT whether all pods are. */
static __always_inline bool slot_observed(__u32 index)
{
	struct slot *slot;

	if (!foreign || index == NO_SLOT)
		return foreign && observe_node;
	slot = bpf_map_lookup_elem(&slots, &index);
	return slot && observed(slot->table);
}

/* Counts a drop that is not a verdict of policy, and emits an event. Returns whether the packet
 * passes all the same, because its pod is observed. */
static __always_inline bool reject(const struct view *v, __u32 slot, const struct flow *flow, bool v6, __u32 reason)
{
	__u32 egress = slot != NO_SLOT ? EVENT_EGRESS : 0;

	count_bytes(v->len, reason);
	emit_event(flow, slot, NULL, EVENT(reason, egress | (v6 ? EVENT_V6 : 0), 0), NULL);
	return slot_observed(slot);
}

/* Decides a packet by its record. Returns whether the packet may continue. */
static __always_inline bool decide(const struct post_dnat_record *r, const struct view *v, bool v6)
{
	struct flow to = {};
	struct slot slot = {};
	bool translated, passes, taken;
	int decision, id;

	if ((v6 ? load_flow6(v, &to, &r->flow) : load_flow4(v, &to, &r->flow)) || !same(&to.src, &r->flow.src) ||
	    to.src_port != r->flow.src_port || to.protocol != r->flow.protocol)
		return reject(v, r->slot, &r->flow, v6, DROP_UNMARKED);
	if (to.protocol == IPPROTO_UDP && ((tunnel_port && to.dst_port == tunnel_port) || is_tunnel(to.protocol, to.dst_port)))
		return reject(v, r->slot, &to, v6, DROP_TUNNEL);
	translated = !same(&to.dst, &r->flow.dst) || to.dst_port != r->flow.dst_port;
	if (r->kind == PACKET_ANSWER && (!translated || answers_client(r, &to, v6)))
		return true;
	decision = evaluate(r->slot, &slot, &to, v6, v->place != FORWARD);
	if (decision == TO_BROADCAST)
		return reject(v, r->slot, &to, v6, DROP_NEIGHBOUR);
	if (decision == NO_VERDICT)
		return reject(v, r->slot, &r->flow, v6, DROP_UNMARKED);
	passes = verdict_of(decision) == ALLOW || observed(slot.table);
	taken = passes && translated && port_taken(r, &to, v6); /* a new flow may evict the old one */
	id = passes ? store_allowed(r, &to, &slot, v->len, v6) : store_denied(r, &slot, v6);
	if (passes && verdict_of(decision) == DENY && id == COUNT_EGRESS_ALLOW)
		id = COUNT_EGRESS_DENY;
	if (id != NO_COUNTER) {
		struct end service = { .addr = r->flow.dst, .port = r->flow.dst_port };

		if (id < DROP_NO_ENDPOINT)
			count_verdict(r->slot, id, cause_of(decision));
		else
			count_bytes(v->len, id);
		emit_event(&to, r->slot, &slot, EVENT(id, EVENT_EGRESS | (v6 ? EVENT_V6 : 0), 0), translated ? &service : NULL);
	}
	if (!passes || !translated)
		return passes;
	if (taken && must_retry(r, v6))
		return reject(v, r->slot, &to, v6, DROP_PORT_TAKEN);
	retire_fast_path(&to, v6);
	return true;
}

/* Copies the record that a packet names. Returns false if there is none. A packet may wait until
 * another CPU writes its record again. That CPU first removes the mark, so what was read before the
 * second comparison is about one packet. */
static __always_inline bool load_record(const struct view *v, struct post_dnat_record *to)
{
	__u32 place = v->mark >> 16;
	struct post_dnat_record *r = bpf_map_lookup_elem(&post_dnat, &place);

	if (!r || !names_record(v->mark, r))
		return false;
	order_loads();
	*to = *r;
	order_loads();
	return names_record(v->mark, r);
}

/* Reports whether the packet of a pod may continue. */
static __always_inline bool pod_passes(const struct view *v, const struct endpoint *e, bool v6)
{
	struct post_dnat_record r;

	if (handover && !our_mark(v->mark))
		return true;
	if (!load_record(v, &r) || r.slot != e->slot)
		return reject(v, e->slot, NULL, v6, DROP_UNMARKED);
	return v6 ? decide(&r, v, true) : decide(&r, v, false);
}

/* Reports whether a packet may continue that a pod behind a bridge sent. Its record names the
 * pod; decide compares the addresses. */
static __always_inline bool bridged_passes(const struct view *v, bool v6)
{
	struct post_dnat_record r;

	if (our_mark(v->mark) == MARK_APPROVED)
		return true;
	if (!load_record(v, &r))
		return reject(v, NO_SLOT, NULL, v6, DROP_UNMARKED);
	return v6 ? decide(&r, v, true) : decide(&r, v, false);
}

/* Reports whether an IPv6 packet to a pod of this node comes from the pod range of another node
 * by a device that does not lead there. to_pod cannot know the device if the kernel fragments the
 * packet again. */
static __always_inline bool misrouted(const struct view *v, struct flow *flow)
{
	struct prefix6 prefix = { .bits = 128 };
	struct node_route *found;

	__builtin_memcpy(prefix.addr, &flow->src, 16);
	found = bpf_map_lookup_elem(&node_routes6, &prefix);
	if (!found || found->ifindex == v->ifindex)
		return false;
	return load(v, offsetof(struct ipv6hdr, daddr), &flow->dst.word[0], 16) || owner_of(&flow->dst, true) == OWNER_POD;
}

/* Reports whether a packet from elsewhere may be forwarded. Its source must not be an address
 * of this node or its pods. Masquerading comes later, so a masqueraded packet still has its own
 * source. */
static __always_inline bool may_forward(const struct view *v, bool v6)
{
	struct flow flow = {};

	if (load(v, v6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr), v6 ? &flow.src.word[0] : &flow.src.word[3], v6 ? 16 : 4))
		return false;
	return owner_of(&flow.src, v6) || (v6 && misrouted(v, &flow)) ? reject(v, NO_SLOT, &flow, v6, DROP_SPOOFED) : true;
}

/* Reports whether from_pod stored a record of a packet. */
static __always_inline bool recorded(const struct view *v)
{
	__u32 place = v->mark >> 16;
	struct post_dnat_record *r = bpf_map_lookup_elem(&post_dnat, &place);

	return r && names_record(v->mark, r);
}

/* Whether a packet comes from a pod behind a bridge. */
enum bridged {
	BRIDGED_NO,
	BRIDGED_POD,
	BRIDGED_FORGED, /* from another interface than the bridge of that pod */
};

/* Reports whether the source of a packet is a pod behind a bridge. Such packets arrive at the
 * host by the bridge, not by the interface of the pod. */
static __always_inline enum bridged from_bridge(const struct view *v, bool v6)
{
	struct prefix6 prefix = { .bits = v6 ? 128 : 32 };
	struct node_route *found;

	if (load(v, v6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr), prefix.addr, v6 ? 16 : 4))
		return BRIDGED_FORGED;
	found = v6 ? bpf_map_lookup_elem(&node_routes6, &prefix) : bpf_map_lookup_elem(&node_routes4, &prefix);
	if (!found)
		return BRIDGED_NO;
	return found->ifindex == v->ifindex ? BRIDGED_POD : BRIDGED_FORGED;
}

/* The index of the loopback interface, in every network namespace. */
#define LOOPBACK_DEVICE 1

/* Reports whether an IPv4 fragment comes from the pod range of another node by a device that does not lead there: the host stack
 * would complete a datagram with it. In IPv6, connection tracking keeps the fragments of devices apart. */
static __always_inline bool misrouted_fragment(const struct view *v, const struct flow *flow)
{
	struct prefix4 prefix = { .bits = 32 };
	struct node_route *found;
	__be16 fragment;

	if (load(v, offsetof(struct iphdr, frag_off), &fragment, sizeof(fragment)))
		return true;
	if (!(fragment & bpf_htons(IP_OFFSET | IP_MORE_FRAGMENTS)))
		return false;
	__builtin_memcpy(prefix.addr, &flow->src.word[3], sizeof(prefix.addr));
	found = bpf_map_lookup_elem(&node_routes4, &prefix);
	return found && found->ifindex != v->ifindex;
}

/* Reports whether the host may answer a packet that no pod sent. A forged source that is a pod would
 * receive the answer, or the ICMP error, as a packet of its host. The host also answers packets
 * that never reach FORWARD or LOCAL_IN: those with their last hop, or without a route. */
static __always_inline bool may_be_answered(const struct view *v, bool v6)
{
	struct flow flow = {};

	if (v->ifindex == LOOPBACK_DEVICE)
		return true;
	if (foreign) {
		switch (from_bridge(v, v6)) {
		case BRIDGED_POD:
			return true;
		case BRIDGED_FORGED:
			return reject(v, NO_SLOT, NULL, v6, DROP_SPOOFED);
		case BRIDGED_NO:
			break;
		}
	}
	if (load(v, v6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr), v6 ? &flow.src.word[0] : &flow.src.word[3], v6 ? 16 : 4))
		return false;
	return owner_of(&flow.src, v6) == OWNER_POD || (!v6 && misrouted_fragment(v, &flow)) ? reject(v, NO_SLOT, &flow, v6, DROP_SPOOFED) : true;
}

/* Reports whether a packet of a pod continues, whatever it contains: from_pod has approved it, or it
 * gets its verdict at a later hook. */
static __always_inline bool passes_unread(const struct view *v, const struct endpoint *e)
{
	return e && (v->place == PRE_ROUTING || our_mark(v->mark) == MARK_APPROVED);
}

/* Reports whether any other packet may continue. */
static __always_inline bool passes(const struct view *v, const struct endpoint *e, bool v6)
{
	if (v->place == PRE_ROUTING)
		return may_be_answered(v, v6);
	if (e)
		return pod_passes(v, e, v6);
	if (foreign) {
		switch (from_bridge(v, v6)) {
		case BRIDGED_POD:
			return bridged_passes(v, v6);
		case BRIDGED_FORGED:
			return reject(v, NO_SLOT, NULL, v6, DROP_SPOOFED);
		case BRIDGED_NO:
			if (recorded(v))
				return bridged_passes(v, v6);
		}
	}
	if (v->place == FORWARD && !may_forward(v, v6))
		return false;
	return may_enter(v, v6) ? true : reject(v, NO_SLOT, NULL, v6, DROP_TUNNEL);
}

/* Returns the position of a packet in the host stack, by its hook. */
static __always_inline enum place place_of(const struct nf_hook_state *state)
{
	switch (state->hook) {
	case NF_INET_PRE_ROUTING:
		return PRE_ROUTING;
	case NF_INET_FORWARD:
		return FORWARD;
	case NF_INET_LOCAL_IN:
		return LOCAL_IN;
	}
	return LOCAL_OUT;
}

/* One program for all hooks, because the verifier needs as long for it as for one hook. */
SEC("netfilter")
int hook(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *skb = ctx->skb;
	struct bpf_dynptr packet;
	struct view v = { .from = &packet, .place = place_of(ctx->state), .mark = skb->mark, .ifindex = skb->skb_iif, .len = skb->len };
	const struct endpoint *e;

	if (!v.ifindex)
		return NF_ACCEPT; /* sent by this host */
	e = find_endpoint(v.ifindex);
	if (passes_unread(&v, e))
		return NF_ACCEPT;
	if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &packet))
		return NF_DROP;
	return (ctx->state->pf == NFPROTO_IPV6 ? passes(&v, e, true) : passes(&v, e, false)) ? NF_ACCEPT : NF_DROP;
}

/* Reports whether the nftables rule must drop a packet. */
static __always_inline int matches(struct __sk_buff *skb, enum place place)
{
	struct view v = { .from = skb, .filter = true, .place = place, .mark = skb->mark, .ifindex = skb->ingress_ifindex, .len = skb->len };
	const struct endpoint *e;
	__u8 version;

	if (!v.ifindex)
		return false;
	e = find_endpoint(v.ifindex);
	if (passes_unread(&v, e))
		return false;
	if (load(&v, 0, &version, 1))
		return true;
	return version >> 4 == 6 ? !passes(&v, e, true) : !passes(&v, e, false);
}

SEC("socket")
int pre_routing_filter(struct __sk_buff *skb)
{
	return matches(skb, PRE_ROUTING);
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
