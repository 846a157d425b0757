/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Policy on the host's side of a pod's veth pair: from_pod at tcx ingress sees
 * what the pod sends, to_pod at tcx egress what it is about to receive from the
 * stack. A packet passes when the pod's end of its flow has a role under the
 * policy in force, or gets one now. From pod to pod of this node from_pod
 * decides for both ends and delivers. */

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
#include "include/translate.h"

/* Other programs on the hook come next, then the stack. */
#define PASS TC_ACT_UNSPEC

/* What becomes of a packet: 0 or less, or the reason to drop it. */
enum fate {
	FATE_PASS = 0,
	FATE_DENIED = -1, /* dropped, and counted */
	FATE_DIRECT = -2, /* into the interface of the pod at the other end */
	FATE_PENDING = -3, /* decided behind the stack's translation */
};

static __always_inline int drop(struct __sk_buff *skb, __u32 reason)
{
	count(skb, reason);
	return TC_ACT_SHOT;
}

/* A pod at one end of a packet's flow. */
struct local {
	__u32 index; /* of its slot */
	struct slot slot;
	bool from_pod; /* the packet is its own, or is for it */
	bool asked;    /* its table allows what the packet opens */
};

/* Whether there is such a slot. */
static __always_inline bool read_slot(struct local *l)
{
	__u32 index = l->index; /* on the stack, as Linux 6.1 wants keys */
	volatile __u64 *slot = bpf_map_lookup_elem(&slots, &index);

	if (slot)
		*(__u64 *)&l->slot = *slot;
	return slot;
}

/* What is done for few packets is in functions that the verifier looks at once, by
 * themselves, and not wherever they are called. It takes their pointers to be
 * NULL if they are not compared. */

/* The two questions of policy, for all but the packets that are most of the work. */
__noinline int class_of_address(const struct ip *addr, int v6)
{
	struct prefix6 key = {}; /* on the stack, as in read_slot */
	const struct ip *a = (const struct ip *)key.addr;
	struct peer_class *found;

	if (!addr)
		return 0;
	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	found = v6 ? bpf_map_lookup_elem(&peers6, a) : bpf_map_lookup_elem(&peers4, &a->word[3]);
	if (found)
		return found->class;
	if (v6) {
		key.bits = 128;
		found = bpf_map_lookup_elem(&prefixes6, &key);
	} else {
		key.bits = 32;
		__builtin_memcpy(key.addr, &addr->word[3], 4);
		found = bpf_map_lookup_elem(&prefixes4, &key);
	}
	return found ? found->class : 0;
}

__noinline int table_allows(__u32 table, __u32 dir, __u32 peer, __u32 protocol, __u32 port)
{
	return table_says(table, dir & 1, peer, protocol, port);
}

/* Asks the pod's table about an address and a port. Who notes the answer under an
 * older epoch than it is of will only ask again. */
__noinline int ask_about(const struct local *l, const struct ip *remote, const struct packet *p, int port, int dir)
{
	volatile struct slot *slot;
	__u32 index, stage;
	int verdict;

	if (!l || !remote || !p)
		return DENY;
	index = l->index; /* on the stack, as in read_slot */
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return DENY;
	for (int i = 0; i < VERDICT_TRIES; i++) {
		stage = stage_now();
		verdict = table_allows(slot->table, dir, class_of_address(remote, p->v6), p->flow.protocol, port);
		if (stage_now() == stage)
			return verdict;
	}
	return DENY;
}

/* Asks about the flow of a packet, as if it were new. */
static __always_inline int ask(const struct local *l, const struct packet *p, enum direction dir)
{
	return ask_about(l, l->from_pod ? &p->flow.dst : &p->flow.src, p,
			 l->from_pod == (dir == EGRESS) ? p->flow.dst_port : p->flow.src_port, dir);
}

/* Asks about a flow that the pod opened, where its packets really go. */
static __always_inline __u8 ask_opened(const struct local *l, const struct packet *p, const struct conn *c)
{
	const struct ip *own = l->from_pod ? &p->flow.src : &p->flow.dst;
	struct ip backend;

	if (!(c->flags & CONN_TRANSLATED))
		return ask(l, p, EGRESS);
	__builtin_memcpy(&backend, c->backend, sizeof(backend));
	if (same(own, &backend))
		return ALLOW;
	return ask_about(l, &backend, p, c->backend_port, EGRESS);
}

/* The role that a pod has in a flow which this packet opens. */
static __always_inline __u8 role_of(const struct local *l)
{
	return l->from_pod ? SIDE_OPENED : SIDE_ACCEPTED;
}

/* May the pod have that role? Counted as a verdict on a new flow. */
static __always_inline __u8 judge(struct __sk_buff *skb, const struct local *l, const struct packet *p)
{
	enum direction dir = l->from_pod ? EGRESS : INGRESS;
	__u8 verdict = l->asked ? ALLOW : ask(l, p, dir);

	count(skb, dir * 2 + verdict);
	return verdict;
}

/* A flow that the pod had a role in under an older epoch: which roles does the
 * policy in force leave? Both ends of it are asked as they were at first. */
__noinline int confirm(const struct local *l, const struct packet *p, struct conn *c, int side)
{
	__u8 had, kept = 0;

	if (!l || !p || !c)
		return DROP_REVOKED;
	had = OF_END(c->side, side) & (SIDE_OPENED | SIDE_ACCEPTED);
	if ((had & SIDE_OPENED) && ask_opened(l, p, c))
		kept |= SIDE_OPENED;
	if ((had & SIDE_ACCEPTED) && ask(l, p, INGRESS))
		kept |= SIDE_ACCEPTED;
	/* Without a role left the flow stays known, so that packets still on
	 * their way are not taken for a new one. */
	OF_END(c->side, side) = kept ? kept : had | SIDE_REVOKED;
	OF_END(c->epoch, side) = l->slot.epoch;
	return kept ? FATE_PASS : DROP_REVOKED;
}

/* A new role in a known flow: the pod opens it, or is reached. */
__noinline int grant(struct __sk_buff *skb, const struct local *l, const struct packet *p, struct conn *c, int side)
{
	__u8 role;

	if (!l || !p || !c || judge(skb, l, p) == DENY)
		return FATE_DENIED;
	role = role_of(l);
	if (OF_END(c->epoch, side) == l->slot.epoch && !(OF_END(c->side, side) & SIDE_REVOKED))
		role |= OF_END(c->side, side);
	OF_END(c->side, side) = role;
	OF_END(c->epoch, side) = l->slot.epoch;
	return FATE_PASS;
}

/* May the pod at one end of a known flow send this packet, or receive it? */
static __always_inline int admit(struct __sk_buff *skb, const struct local *l, const struct packet *p,
				 struct conn *c, bool side)
{
	__u8 flags = OF_END(c->side, side);
	bool stale = OF_END(c->epoch, side) != l->slot.epoch;

	if (p->kind == PACKET_OPENS) {
		/* Being reached by a flow gives no right to open its reverse. */
		if (!(flags & role_of(l)) || (flags & SIDE_REVOKED) || stale)
			return grant(skb, l, p, c, side);
		return FATE_PASS;
	}
	if (!flags)
		return grant(skb, l, p, c, side);
	if (stale)
		return confirm(l, p, c, side);
	return flags & SIDE_REVOKED ? DROP_REVOKED : FATE_PASS;
}

/* The pod that has an address, if it is on this node. */
static __always_inline bool find_local(const struct ip *addr, struct local *l, bool v6)
{
	struct ip a = *addr; /* as in read_slot */
	struct slot_index *found = v6 ? bpf_map_lookup_elem(&locals6, &a) : bpf_map_lookup_elem(&locals4, &a.word[3]);

	if (!found)
		return false;
	l->index = found->slot;
	return read_slot(l);
}

/* Whether a packet of an unknown flow may start one that passes the stack by.
 * The stack may know what looks like the middle of a TCP connection, and may
 * have translated it. */
static __always_inline bool starts_direct(const struct packet *p)
{
	return p->kind == PACKET_OPENS || (p->kind == PACKET_FLOW && p->flow.protocol == IPPROTO_UDP);
}

/* Makes the entry of a flow that was decided: for both ends if it is direct. */
__noinline int note_flow(struct __sk_buff *skb, const struct local *l, const struct packet *p, const struct local *peer, int direct)
{
	struct conn_place at = {};
	struct conn fresh = {};
	__u8 role, peer_role;
	__u32 epoch;
	bool end;

	if (!l || !p || !peer)
		return -1;
	conn_place(&p->flow, &at, p->v6);
	end = l->from_pod ? at.src : !at.src;
	role = role_of(l);
	peer_role = direct ? SIDE_ACCEPTED : 0;
	epoch = direct ? peer->slot.epoch : 0;
	/* Both ends are written: the verifier knows no variable stack offsets. */
	fresh.side[0] = end ? peer_role : role;
	fresh.side[1] = end ? role : peer_role;
	fresh.epoch[0] = end ? epoch : l->slot.epoch;
	fresh.epoch[1] = end ? l->slot.epoch : epoch;
	fresh.slot[0] = end ? peer->index : l->index;
	fresh.slot[1] = end ? l->index : peer->index;
	fresh.flags = direct ? CONN_DIRECT : 0;
	fresh.packets[0] = !at.src;
	fresh.packets[1] = at.src;
	fresh.bytes[0] = at.src ? 0 : skb->len;
	fresh.bytes[1] = at.src ? skb->len : 0;
	fresh.seen = bpf_jiffies64();
	conn_create(&at, &fresh, p->v6);
	return 0;
}

/* Decides an unknown flow, for both ends if both are pods of this node. */
__noinline int open_flow(struct __sk_buff *skb, const struct local *l, const struct packet *p, struct local *peer)
{
	bool direct;

	if (!l || !p || !peer || judge(skb, l, p) == DENY)
		return FATE_DENIED;
	direct = l->from_pod && starts_direct(p) && find_local(&p->flow.dst, peer, p->v6);
	if (direct && judge(skb, peer, p) == DENY)
		return FATE_DENIED;
	note_flow(skb, l, p, peer, direct);
	return direct ? FATE_DIRECT : FATE_PASS;
}

/* The far end of a direct flow is under another policy by now, or has no role
 * yet, or the address is another pod's, or nobody's. */
__noinline int renew_peer(struct __sk_buff *skb, struct local *peer, const struct packet *p, struct conn *c, int side)
{
	int err;

	if (!peer || !p || !c)
		return FATE_DENIED;
	if (!find_local(&p->flow.dst, peer, p->v6)) {
		c->flags &= ~CONN_DIRECT;
		return FATE_PASS;
	}
	OF_END(c->slot, side) = peer->index;
	err = admit(skb, peer, p, c, side);
	return err ? err : FATE_DIRECT;
}

/* May the pod at the far end of a direct flow receive this packet? */
static __always_inline int admit_peer(struct __sk_buff *skb, struct local *peer, const struct packet *p,
				      struct conn *c, bool side)
{
	__u8 flags = OF_END(c->side, side);

	peer->index = OF_END(c->slot, side);
	if (read_slot(peer) && OF_END(c->epoch, side) == peer->slot.epoch && !(flags & SIDE_REVOKED) &&
	    (p->kind != PACKET_OPENS || (flags & SIDE_ACCEPTED)))
		return FATE_DIRECT;
	return renew_peer(skb, peer, p, c, side);
}

/* Whether a packet of a pod's known flow is decided behind the translation. A
 * TCP connection keeps its backend, so that one verdict per epoch will do; of
 * other flows every packet may get another. */
static __always_inline bool pends(const struct local *l, const struct packet *p, const struct conn *c, bool side)
{
	__u8 flags = OF_END(c->side, side);
	bool stale = OF_END(c->epoch, side) != l->slot.epoch;

	if (!l->from_pod || (flags & SIDE_ACCEPTED) || !translatable(p))
		return false;
	if (c->flags & CONN_TRANSLATED)
		return stale || p->flow.protocol != IPPROTO_TCP;
	return (stale || !flags) && !(class_of_address(&p->flow.dst, p->v6) & PEER_POD);
}

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
		count(skb, dir * 2 + DENY);
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
		c->flags &= ~CONN_DIRECT;
	if (pends(l, p, c, side))
		return FATE_PENDING;
	err = admit(skb, l, p, c, side);
	if (!err && l->from_pod && (c->flags & CONN_DIRECT))
		err = admit_peer(skb, peer, p, c, !side);
	if (err == FATE_PASS || err == FATE_DIRECT)
		conn_seen(c, p, skb->len, at.src, now);
	return err;
}

/* Whether an ICMP error from a pod goes to the other end of a direct flow, as
 * the packets did that it is about: the stack does not know them. */
static __always_inline bool error_is_direct(const struct packet *p, const struct conn *c, struct local *peer, bool side)
{
	__u8 flags = OF_END(c->side, side);

	peer->index = OF_END(c->slot, side);
	return (c->flags & CONN_DIRECT) && same(&p->flow.dst, &p->inner.src) && flags && !(flags & SIDE_REVOKED) &&
	       read_slot(peer) && OF_END(c->epoch, side) == peer->slot.epoch;
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
		if (flags && !(flags & SIDE_REVOKED))
			return l->from_pod && error_is_direct(p, c, peer, at.src) ? FATE_DIRECT : FATE_PASS;
	}
	return judge(skb, l, p) == ALLOW ? FATE_PASS : FATE_DENIED;
}

/* Puts a packet into the interface of a pod of this node, as if the host had
 * sent it. Its hop limit stays: there is no router in between. */
static __always_inline int deliver(struct __sk_buff *skb, const struct local *peer)
{
	struct attachment *to = bpf_map_lookup_elem(&attachments, &peer->index);

	skb->mark = 0;
	if (!to || bpf_skb_store_bytes(skb, 0, to, 2 * ETH_ALEN, 0))
		return drop(skb, DROP_NO_ENDPOINT);
	return bpf_redirect_peer(to->ifindex, 0);
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

/* Reads any packet. A function of its own, which the verifier looks at once; what
 * parse_plain left is overwritten. Pointers into the packet are void after it. */
__noinline int parse_any(struct __sk_buff *skb, struct packet *p, int v6)
{
	__u32 headers = skb->len < MAX_HEADERS ? skb->len : MAX_HEADERS;
	struct cursor c;

	if (!p)
		return -DROP_MALFORMED;
	if (skb->data + headers > skb->data_end)
		bpf_skb_pull_data(skb, headers);
	c.pos = (void *)(long)skb->data + sizeof(struct ethhdr);
	c.end = (void *)(long)skb->data_end;
	__builtin_memset(p, 0, sizeof(*p));
	p->v6 = v6;
	return v6 ? parse_ip6(&c, p) : parse_ip4(&c, p);
}

static __always_inline int police_ip(struct __sk_buff *skb, struct local *l, const struct endpoint *e, bool v6)
{
	void *at = (void *)(long)skb->data + sizeof(struct ethhdr), *end = (void *)(long)skb->data_end;
	struct packet p = { .v6 = v6 };
	struct local peer = {};
	int err = parse_plain(at, end, &p, v6) ? 0 : parse_any(skb, &p, v6);

	if (err)
		return drop(skb, -err);
	if (l->from_pod && spoofed(e, &p, v6))
		return drop(skb, DROP_SPOOFED);
	if (p.kind == PACKET_NEIGHBOUR)
		return PASS;
	if (p.kind == PACKET_ROUTER)
		return l->from_pod ? drop(skb, DROP_NEIGHBOUR) : PASS;
	if (same(&p.flow.src, &p.flow.dst))
		return PASS; /* a pod always reaches itself */
	l->index = e->slot;
	err = p.kind == PACKET_ERROR ? track_error(skb, l, &p, &peer) : track(skb, l, &p, &peer, v6);
	switch (err) {
	case FATE_PASS:
		return PASS;
	case FATE_DIRECT:
		return deliver(skb, &peer);
	case FATE_PENDING:
		skb->mark = leave_record(&p, l->index);
		return PASS;
	case FATE_DENIED:
		return TC_ACT_SHOT;
	}
	return drop(skb, err);
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return *(__u32 *)a == *(__u32 *)b && *(__u16 *)(a + 4) == *(__u16 *)(b + 4);
}

static __always_inline int police(struct __sk_buff *skb, bool from_pod)
{
	struct ifindex key = { .ifindex = skb->ifindex };
	struct local l = { .from_pod = from_pod };
	struct ethhdr *eth = (void *)(long)skb->data; /* linear, or the kernel could not have read it */
	const struct endpoint *e = bpf_map_lookup_elem(&endpoints, &key);

	if (!e)
		return drop(skb, DROP_NO_ENDPOINT);
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return drop(skb, DROP_MALFORMED);
	if (from_pod && !same_mac(eth->h_source, e->mac))
		return drop(skb, DROP_SPOOFED);
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return police_ip(skb, &l, e, false);
	case bpf_htons(ETH_P_IPV6):
		return police_ip(skb, &l, e, true);
	case bpf_htons(ETH_P_ARP):
		return PASS;
	}
	return drop(skb, DROP_NOT_IP);
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

/* Reading skb metadata and LRU maps is GPL-free, but kernels ask for the word. */
char _license[] SEC("license") = "Dual BSD/GPL";
