/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "pod_context.h"

/* Lookups in the connection tracking of the kernel. */

/* Whether the kernel has the lookup functions; set by the loader. Without them, no call below
 * runs. */
const volatile bool has_nf_conntrack;

/* The fields of kernel structs that the programs read. CO-RE adjusts the offsets. */
union nf_inet_addr {
	__u32 all[4];
} __attribute__((preserve_access_index));

union nf_conntrack_man_proto {
	__be16 all;
} __attribute__((preserve_access_index));

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2]; /* original, reply */
} __attribute__((preserve_access_index));

struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 tuple_size,
					 struct bpf_ct_opts *opts, __u32 opts_size) __ksym __weak;
extern struct nf_conn___init *bpf_skb_ct_alloc(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 tuple_size,
					       struct bpf_ct_opts *opts, __u32 opts_size) __ksym __weak;
extern struct nf_conn *bpf_ct_insert_entry(struct nf_conn___init *ct) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

/* A new entry of connection tracking before it is in the table. */
struct nf_conn___init {
	struct nf_conn ct;
} __attribute__((preserve_access_index));

#define ENOENT 2

/* Writes the addresses and ports of a flow, or with back those of its reply direction. */
static __always_inline void tuple_of(struct bpf_sock_tuple *t, const struct flow *f, bool v6, bool back)
{
	const struct ip *src = back ? &f->dst : &f->src, *dst = back ? &f->src : &f->dst;
	__be16 src_port = bpf_htons(back ? f->dst_port : f->src_port), dst_port = bpf_htons(back ? f->src_port : f->dst_port);

	if (v6) {
		__builtin_memcpy(t->ipv6.saddr, src, 16);
		__builtin_memcpy(t->ipv6.daddr, dst, 16);
		t->ipv6.sport = src_port;
		t->ipv6.dport = dst_port;
		return;
	}
	t->ipv4.saddr = src->word[3];
	t->ipv4.daddr = dst->word[3];
	t->ipv4.sport = src_port;
	t->ipv4.dport = dst_port;
}

/* Looks up a flow in connection tracking. The caller must release the result. NULL means an
 * error, which opts holds. back looks up the reply direction. */
static __always_inline struct nf_conn *find_tracked(struct __sk_buff *skb, const struct flow *f, bool v6, bool back, struct bpf_ct_opts *opts)
{
	struct bpf_sock_tuple t = {};

	opts->l4proto = f->protocol;
	if (v6) {
		tuple_of(&t, f, true, back);
		return bpf_skb_ct_lookup(skb, &t, sizeof(t.ipv6), opts, sizeof(*opts));
	}
	tuple_of(&t, f, false, back);
	return bpf_skb_ct_lookup(skb, &t, sizeof(t.ipv4), opts, sizeof(*opts));
}

/* Reports whether connection tracking knows a flow in neither direction. If it knows the flow,
 * it may translate it and must see each of its packets. */
__noinline int untracked(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS };
	struct nf_conn *ct;

	if (!p || !has_nf_conntrack)
		return false;
	for (int back = 0; back < 2; back++) {
		ct = find_tracked(skb, &p->flow, p->v6, back, &opts);
		if (ct) {
			bpf_ct_release(ct);
			return false;
		}
		if (opts.error != -ENOENT)
			return false;
	}
	return true;
}

/* Finds the real source of a packet to a pod whose source the host stack replaced: a
 * masqueraded client, or the backend of a Service that answers. For an ICMP error it finds the
 * other end of the quoted flow. Returns whether the source was replaced. */
__noinline int find_translated_source(struct __sk_buff *skb, const struct packet *p, struct pod_ctx *l)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS };
	struct nf_conntrack_man *man;
	struct end sender = {};
	struct nf_conn *ct;
	bool error, exchanged;

	if (!p || !l || !has_nf_conntrack)
		return false;
	/* Look up the direction that the pod sends: answers, or the packet that the error
	 * quotes. */
	error = p->kind == PACKET_ERROR;
	ct = find_tracked(skb, error ? &p->quoted : &p->flow, p->v6, !error, &opts);
	if (!ct)
		return false;
	man = opts.dir ? &ct->tuplehash[0].tuple.src : &ct->tuplehash[1].tuple.src;
	if (p->v6) {
		sender.addr.word[0] = man->u3.all[0];
		sender.addr.word[1] = man->u3.all[1];
		sender.addr.word[2] = man->u3.all[2];
		sender.addr.word[3] = man->u3.all[3];
	} else {
		sender.addr.word[3] = man->u3.all[0];
	}
	sender.port = bpf_ntohs(man->u.all);
	bpf_ct_release(ct);
	store_sender(skb, &sender);
	exchanged = !same(&sender.addr, &p->flow.src);
	/* The pod sends the reply direction, so another end opened the flow. For a process or a pod
	 * of this node, the host stack may replace the port only. */
	l->masqueraded = opts.dir && (exchanged || sender.port != p->flow.src_port);
	return exchanged;
}

/* Reports whether the host stack may send an ICMP error of a pod to another address than its own:
 * connection tracking translates it like the packet that it quotes. What cannot be looked up may be
 * translated: SCTP, IPv6 with extension headers, and what does not quote ports, as a fragment. */
__noinline int error_is_translated(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS };
	struct nf_conntrack_man *man;
	struct ip other = {};
	struct nf_conn *ct;

	if (!p || !p->quoted.protocol || p->quoted.protocol == IPPROTO_SCTP)
		return true;
	if (p->quoted.protocol != IPPROTO_TCP && p->quoted.protocol != IPPROTO_UDP)
		return p->v6 && is_extension(p->quoted.protocol);
	if (!has_nf_conntrack)
		return true;
	ct = find_tracked(skb, &p->quoted, p->v6, true, &opts); /* the direction that the pod sends */
	if (!ct)
		return opts.error != -ENOENT;
	man = opts.dir ? &ct->tuplehash[0].tuple.src : &ct->tuplehash[1].tuple.src;
	if (p->v6) {
		other.word[0] = man->u3.all[0];
		other.word[1] = man->u3.all[1];
		other.word[2] = man->u3.all[2];
		other.word[3] = man->u3.all[3];
	} else {
		other.word[3] = man->u3.all[0];
	}
	bpf_ct_release(ct);
	return !same(&other, &p->flow.dst);
}

/* Inserts a TCP connection into connection tracking, from src to the backend of c. The host stack
 * then chooses another source port for a connection that DNAT gives the same addresses and ports.
 * The entry expires after ten seconds, the default of the kernel. Returns 0. */
__noinline int track_taken(struct __sk_buff *skb, const struct packet *p, const struct conn *c)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS, .l4proto = IPPROTO_TCP };
	struct bpf_sock_tuple t = {};
	struct nf_conn___init *made;
	struct nf_conn *ct;
	struct flow f = {};

	if (!p || !c || !has_nf_conntrack)
		return 0;
	f.src = p->flow.src;
	f.src_port = p->flow.src_port;
	__builtin_memcpy(&f.dst, c->backend, sizeof(f.dst));
	f.dst_port = c->backend_port;
	tuple_of(&t, &f, p->v6, false);
	made = p->v6 ? bpf_skb_ct_alloc(skb, &t, sizeof(t.ipv6), &opts, sizeof(opts)) : bpf_skb_ct_alloc(skb, &t, sizeof(t.ipv4), &opts, sizeof(opts));
	if (!made)
		return 0;
	ct = bpf_ct_insert_entry(made);
	if (ct)
		bpf_ct_release(ct);
	return 0;
}
