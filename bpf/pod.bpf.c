/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Policy at the host end of the veth pair of a pod. from_pod, at tcx ingress, sees what the pod
 * sends. to_pod, at tcx egress, sees what the host stack sends to the pod. A packet passes if
 * its pod has a role in the flow under the policy in force, or gets one now. Between two pods
 * of this node, from_pod decides for both ends and delivers. To pods of other nodes, from_pod
 * forwards. from_node, at tcx ingress of the devices that lead to other nodes, decides and
 * delivers packets from there. adopt_flow migrates flows of an older layout. */

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "include/checksum.h"
#include "include/conntrack.h"
#include "include/foreign.h"
#include "include/parse.h"
#include "include/parse_skb.h"
#include "include/post_dnat.h"
#include "include/records.h"
#include "include/pod_context.h"
#include "include/pod_policy.h"
#include "include/authorisation.h"
#include "include/new_flow.h"
#include "include/local_delivery.h"
#include "include/from_node.h"
#include "include/fragments.h"
#include "include/neighbour.h"
#include "include/icmp_error.h"
#include "include/migration.h"

/* Continue with the next program on the hook, then the host stack. */
#define PASS TC_ACT_UNSPEC

/* Evaluates policy before the flow lookup, for a packet that opens a flow. A denied packet then
 * costs no lookup in the flow table, whether or not the flow is known. */
static __always_inline enum outcome evaluate_early(struct __sk_buff *skb, struct pod_ctx *l, const struct packet *p, __u32 generation, bool v6)
{
	enum direction dir = l->from_pod ? EGRESS : INGRESS;
	__u32 peer, decision, cause;

	if (l->host || l->masqueraded) {
		decision = evaluate(skb, l, p);
	} else {
		peer = class_of(l->from_pod ? &p->flow.dst : &p->flow.src, v6);
		l->peer_is_pod = peer & PEER_POD;
		if (l->from_pod && !l->peer_is_pod && may_be_translated(p))
			return ACT_POST_DNAT;
		decision = table_verdict(l->slot.table, dir, peer, p->flow.protocol, p->flow.dst_port);
		if (current_generation() != generation)
			decision = evaluate(skb, l, p);
	}
	cause = cause_of(decision);
	if (verdict_of(decision) == DENY) {
		if (observed(l->slot.table))
			return ACT_PASS; /* evaluate_new_role reports the flow, if it is new */
		if (!event_rate)
			count_verdict(l->index, dir * 2 + DENY, cause);
		else if (!count_limited(&l->index, dir, cause))
			drop(skb, l, p, WITH_CAUSE(dir * 2 + DENY, cause));
		return ACT_DENIED;
	}
	l->allowed = cause ? cause : CAUSE_OTHER + dir * 2 + ALLOW;
	return ACT_PASS;
}

/* The state of one decision. It is on the stack once, and serves both IP versions. */
struct decision {
	struct pod_ctx local; /* the pod of this interface */
	struct pod_ctx peer;  /* the pod at the other end of a direct flow */
	struct packet packet;
};

/* Decides a packet of a known flow and its path, or returns ACT_UNKNOWN. */
static __always_inline enum outcome track_known(struct __sk_buff *skb, struct decision *d, struct conn *c, __u32 now)
{
	struct pod_ctx *l = &d->local, *peer = &d->peer;
	const struct packet *p = &d->packet;
	const struct conn_place *at = &d->packet.at;
	bool side = l->from_pod ? at->src : !at->src;
	__u32 end = END_IN(at, side);
	enum outcome act;

	if (!l->from_pod) {
		/* The ports of a closed fast-path flow may serve a new flow that DNAT changed.
		 * Its answers must return through the host stack. UDP from the host stack may
		 * always be such a flow. */
		if ((c->flow_flags & (CONN_DIRECT | CONN_REMOTE)) && p->kind == PACKET_OPENS && c->state == CONN_CLOSING)
			conn_leave(c, end, CONN_DIRECT | CONN_REMOTE);
		if ((c->flow_flags & CONN_REMOTE) && p->flow.protocol == IPPROTO_UDP)
			conn_leave(c, end, CONN_REMOTE);
		if ((c->flow_flags & (CONN_DIRECT | CONN_MASQUERADED)) || l->masqueraded || OF_END(c->place, !side) != l->device) {
			act = find_source(skb, p, l);
			if (!act)
				act = update_source(skb, l, c, end);
			if (act)
				return act;
		}
	}
	if (needs_post_dnat(l, p, c, side)) {
		conn_tcp(c, p, at->src, true);
		return ACT_POST_DNAT;
	}
	act = authorise_packet(skb, l, p, c, side);
	if (!act && l->from_pod && (c->flow_flags & CONN_DIRECT)) {
		act = authorise_peer(skb, peer, p, c, !side);
	} else if (!act && l->from_pod && (c->flow_flags & CONN_REMOTE)) {
		l->device = OF_END(c->place, !side);
		act = ACT_REMOTE;
	} else if (!act) {
		act = path_of(l, p, c, side);
	}
	if (!conn_remains(c, end))
		return ACT_UNKNOWN;
	if (continues(act))
		conn_seen(c, p, at->src, l->from_pod, now);
	return act;
}

/* Decides a packet of a flow and its path. For ACT_LOCAL, d->peer becomes the pod at the
 * other end. */
static __always_inline enum outcome track(struct __sk_buff *skb, struct decision *d, bool v6)
{
	struct pod_ctx *l = &d->local, *peer = &d->peer;
	const struct packet *p = &d->packet;
	struct conn_place *at = &d->packet.at;
	__u32 now = bpf_jiffies64();
	struct conn *c;
	__u32 generation = p->kind == PACKET_OPENS ? current_generation() : 0; /* before any lookup */
	enum outcome act;

	/* For foreign interfaces this is the second time. The table must be read after the
	 * generation: the entries of an earlier table may be gone. */
	if (!read_slot(l))
		return DROP_NO_ENDPOINT;
	if (p->kind == PACKET_OPENS) {
		act = l->from_pod ? ACT_PASS : find_source(skb, p, l);
		if (!act)
			act = evaluate_early(skb, l, p, generation, v6);
		if (act)
			return act;
	}
	conn_place(&p->flow, at, v6);
	c = conn_find(at, p->flow.protocol, now, v6);
	if (c) {
		act = track_known(skb, d, c, now);
		if (act != ACT_UNKNOWN)
			return act;
	}
	if (l->from_pod && !l->allowed && may_be_translated(p) && !(class_of_address(&p->flow.dst, v6) & PEER_POD))
		return ACT_POST_DNAT;
	act = l->from_pod || l->allowed ? ACT_PASS : find_source(skb, p, l);
	if (!act)
		act = open_flow(skb, l, p, peer);
	if (continues(act))
		store_flow(skb, l, p, peer, act);
	return act;
}

/* A pod may send only from its own addresses. */
static __always_inline bool spoofed(const struct endpoint *e, const struct packet *p, bool v6)
{
	struct ip own = address_of(e, v6);

	return unspecified(&own) || (!same(&p->flow.src, &own) && !is_further(e, &p->flow.src, v6));
}

/* Reports whether a packet goes to a loopback address. Interfaces of pods accept some of them
 * to support host ports. */
static __always_inline bool to_loopback(const struct packet *p, bool v6)
{
	return !v6 && (p->flow.dst.word[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

/* Reports whether a packet goes to an address of the link between the pod and its host: IPv6 link-local, or multicast or
 * broadcast that no router forwards. The host also belongs to all routers of a site. Only the host could receive the packet,
 * which policy names by other addresses, and each link-local address would be a neighbour of the host. */
static __always_inline bool to_link(const struct packet *p, bool v6)
{
	__u32 dst = bpf_ntohl(p->flow.dst.word[3]);

	return v6 ? on_link(&p->flow.dst) || to_site_routers(&p->flow.dst) : dst >> 8 == 0xe00000 || dst == 0xffffffff;
}

/* Reports whether an allowed packet of a pod needs a record in the host stack. A Service may have the
 * address of a pod as an external address. */
static __always_inline bool needs_record(const struct packet *p)
{
	return decides_alone && may_be_translated(p);
}

/* If DNAT gave the last packet that opened this connection the addresses and ports of one on the
 * fast path, makes that known to connection tracking. Returns 0. */
__noinline int free_port(struct __sk_buff *skb, const struct packet *p)
{
	struct conn_place at = {};
	struct conn *c;

	if (!p)
		return 0;
	conn_place(&p->flow, &at, p->v6);
	c = conn_find_rare(&at, IPPROTO_TCP, bpf_jiffies64(), p->v6);
	if (!c || !(c->flow_flags & CONN_PORT_TAKEN) || !conn_hold(c, END_IN(&at, 0)))
		return 0;
	track_taken(skb, p, c);
	conn_release(c);
	return 0;
}

/* Carries out a decision, other than ACT_DENIED, about a packet of a pod. */
static __always_inline int send(struct __sk_buff *skb, const struct pod_ctx *l, const struct packet *p, const struct pod_ctx *peer, enum outcome act)
{
	__u8 kind = PACKET_ANSWER;
	int fate;

	if (foreign && (act == ACT_POST_DNAT || act == ACT_ANSWER) && !l->to_host)
		return drop(skb, l, p, DROP_SPOOFED);
	switch (act) {
	case ACT_LOCAL:
		return deliver(skb, peer, p);
	case ACT_REMOTE:
		fate = forward(skb, p, l->device);
		if (fate != PASS)
			return fate;
		/* fall through */
	case ACT_PASS:
		if (!needs_record(p))
			return PASS;
		break;
	case ACT_ANSWER:
		break;
	case ACT_POST_DNAT:
		if (p->kind == PACKET_OPENS && p->flow.protocol == IPPROTO_TCP)
			free_port(skb, p);
		kind = p->kind;
		break;
	default:
		return drop(skb, l, p, act);
	}
	skb->mark = store_record(p, l->index, l->slot.epoch, kind);
	return PASS;
}

/* Decides packets that belong to no flow. Returns ACT_FLOW for all others. */
static __always_inline enum outcome police_discovery(struct __sk_buff *skb, struct packet *p, bool from_pod)
{
	if (p->kind == PACKET_NEIGHBOUR || p->kind == PACKET_ROUTER) {
		if (may_discover(skb, p, from_pod))
			return ACT_PASS;
		if (from_pod) /* no router is on the way to a pod on a bridge, or on the fast path */
			return DROP_NEIGHBOUR;
		p->kind = PACKET_FLOW;
	}
	return ACT_FLOW;
}

/* Reports whether the route of an IPv6 packet takes another packet out of it, as those of SRv6 do (seg6local). The host stack
 * would forward that packet, about which policy has not decided. If the kernel cannot tell, the answer is yes. */
static __always_inline bool unpacked_by_route(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup fib = { .family = AF_INET6, .ifindex = skb->ifindex, .l4_protocol = p->flow.protocol };
	long err;

	if (!p->v6 || (p->flow.protocol != IPPROTO_IPV6 && p->flow.protocol != IPPROTO_IPIP && p->flow.protocol != IPPROTO_ETHERNET))
		return false;
	__builtin_memcpy(fib.ipv6_src, &p->flow.src, 16);
	__builtin_memcpy(fib.ipv6_dst, &p->flow.dst, 16);
	err = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	return err < 0 || err == BPF_FIB_LKUP_RET_UNSUPP_LWT || err == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Reports whether a packet would enter a tunnel directly in IP, of this node or another. The host stack knows
 * where those over UDP lead. Not inlined, so that the verifier checks it once. */
__noinline int into_tunnel(struct __sk_buff *skb, const struct packet *p)
{
	struct ip dst;

	if (!p || (!is_tunnel(p->flow.protocol, 0) && !unpacked_by_route(skb, p)))
		return false;
	dst = p->flow.dst; /* Linux 6.1 accepts map keys only from the stack */
	return !(class_of_address(&dst, p->v6) & PEER_POD);
}

static __always_inline int police_ip(struct __sk_buff *skb, struct decision *d, const struct endpoint *e, bool v6, bool from_pod)
{
	void *at = (void *)(long)skb->data + sizeof(struct ethhdr), *end = (void *)(long)skb->data_end;
	struct packet *p = &d->packet;
	struct pod_ctx *l = &d->local;
	enum outcome act;

	p->v6 = v6;
	if (parse_plain(at, end, p, v6)) {
		if (from_pod && checksum_in_headers(skb, p, v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
			return drop(skb, l, p, DROP_MALFORMED);
	} else {
		act = parse_any(skb, p, v6);
		if (!act && from_pod && checksum_in_headers(skb, p, p->headers))
			act = DROP_MALFORMED;
		if (act)
			return drop(skb, l, p, act);
		/* Policy decides on the destination of a packet. A router would send it on to others, and a receiver its answers. */
		if (p->routed && (v6 ? from_pod : source_routed(skb)))
			return drop(skb, l, p, DROP_MALFORMED);
		if (l->host && p->split && !skb->sk) { /* what the host sends has a socket */
			l->host = false;
			l->device = DEVICE_LOST;
		}
		act = v6 ? police_discovery(skb, p, from_pod) : ACT_FLOW;
		if (act != ACT_FLOW)
			return act ? drop(skb, l, p, act) : PASS;
		if (p->fragment == FRAGMENT_LATER && !find_fragment(l, p))
			return drop(skb, l, p, DROP_FRAGMENT);
		if (from_pod && odd_error(p, v6))
			return drop(skb, l, p, DROP_NEIGHBOUR);
		if (from_pod && into_tunnel(skb, p))
			return drop(skb, l, p, DROP_TUNNEL);
	}
	if (from_pod && (spoofed(e, p, v6) || to_loopback(p, v6)))
		return drop(skb, l, p, DROP_SPOOFED);
	if (!foreign && from_pod && to_link(p, v6))
		return drop(skb, l, p, DROP_NEIGHBOUR);
	if (foreign && !from_pod && !to_own_address(skb, p))
		return drop(skb, l, p, DROP_SPOOFED);
	if (same(&p->flow.src, &p->flow.dst)) { /* a pod always reaches itself */
		act = from_pod || l->host || l->device == skb->ifindex ? ACT_PASS : DROP_SPOOFED;
	} else if (p->kind == PACKET_ERROR) {
		act = from_pod ? ACT_PASS : find_source(skb, p, l);
		if (!act)
			act = track_error(skb, l, p, &d->peer);
	} else {
		act = track(skb, d, v6);
	}
	if (act == ACT_DENIED)
		return TC_ACT_SHOT;
	if (p->fragment == FRAGMENT_FIRST && act <= ACT_PASS)
		store_fragment(l, p);
	if (act == ACT_PASS && !from_pod)
		return PASS;
	/* to_pod must contain no code that writes to the packet: the kernel would unshare every
	 * packet. */
	return from_pod ? send(skb, l, p, &d->peer, act) : drop(skb, l, p, act);
}

static __always_inline int police(struct __sk_buff *skb, bool from_pod)
{
	struct decision d = { .local = { .index = NO_SLOT, .from_pod = from_pod, .host = !from_pod && !skb->ingress_ifindex, .device = from_pod ? 0 : skb->ingress_ifindex } };
	struct ethhdr *eth = (void *)(long)skb->data; /* linear, because the kernel has read it
						       * already */
	const struct endpoint *e = find_endpoint(skb->ifindex);

	if (!e)
		return drop(skb, &d.local, NULL, DROP_NO_ENDPOINT);
	d.local.index = e->slot;
	if (foreign)
		read_slot(&d.local); /* every drop depends on it */
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return drop(skb, &d.local, NULL, DROP_MALFORMED);
	if (from_pod && !equal_mac(eth->h_source, e->mac))
		return drop(skb, &d.local, NULL, DROP_SPOOFED);
	if (foreign && from_pod)
		d.local.to_host = equal_mac(eth->h_dest, e->host_mac);
	if (foreign && !from_pod && for_another(eth, e))
		return observed(d.local.slot.table) ? PASS : TC_ACT_SHOT;
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return police_ip(skb, &d, e, false, from_pod);
	case bpf_htons(ETH_P_IPV6):
		return police_ip(skb, &d, e, true, from_pod);
	case bpf_htons(ETH_P_ARP):
		/* Without a bridge, only the host can send ARP to the pod. */
		return (from_pod ? own_arp(skb) : !foreign || concerns_pod(skb)) ? PASS : drop(skb, &d.local, NULL, DROP_NEIGHBOUR);
	}
	return drop(skb, &d.local, NULL, DROP_NOT_IP);
}

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	skb->mark = MARK_APPROVED; /* the default, unless the decision sets another mark */
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
	if (foreign) /* no device has it: packets between nodes stay in the host stack of the other CNI plugin */
		return PASS;
	switch (skb->protocol) {
	case bpf_htons(ETH_P_IP):
		return police_from_node(skb, false);
	case bpf_htons(ETH_P_IPV6):
		return police_from_node(skb, true);
	}
	return PASS;
}

/* Types that user space needs, besides those of the maps. The variable keeps them in BTF, from
 * which bpf2go generates Go types, and Go constants for an enum. */
const struct shared_types {
	struct event event;
	struct approval approval;
	struct conn conn;
	struct carried_flow carried_flow;
	struct adoption adoption;
	enum adoption_result adoption_result;
	enum cause_layout cause_layout;
	enum cause_number cause_number;
	enum class_flag class_flag;
	enum conn_flag conn_flag;
	enum conn_state conn_state;
	enum conn_version conn_version;
	enum counter_id counter_id;
	enum event_flag event_flag;
	enum event_loss event_loss;
	enum interface_number interface_number;
	enum outcome outcome;
	enum owner owner;
	enum role role;
	enum row_number row_number;
	enum slot_number slot_number;
	enum table_flag table_flag;
} *shared_types __attribute__((unused));

/* bpf_fib_lookup and the connection tracking kfuncs are GPL-only: the kernel loads a program
 * that calls them only with a GPL-compatible licence string. */
char _license[] SEC("license") = "Dual BSD/GPL";
