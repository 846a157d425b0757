/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include "foreign.h"
#include "maps.h"
#include "parse.h"

/* Packets that pods send to addresses outside the pod ranges. Such an address may belong to a
 * Service: the host stack then replaces the destination (DNAT), and egress policy applies to
 * the backend. from_pod stores a record of the packet and puts the index of the record into the
 * mark. After DNAT, bpf/egress.bpf.c reads the record and decides. An allowed packet to a pod leaves
 * a record too, because a Service may have that address as an external address. Packets of
 * protocols that kube-proxy does not translate get the mark MARK_APPROVED. A packet with neither
 * mark is dropped.
 *
 * The upper half of a mark is the index of the record. Below are four bits for the kind and ten
 * bits that count how often the index was used. Bits 14 and 15 belong to kube-proxy.
 *
 * In an upgrade, programs of two layouts share the records and see the marks of each other. A
 * change in the meaning of a mark must therefore change struct post_dnat_record too. */
#define MARK_KIND 0x00003c00
#define MARK_OURS 0xffff3fff
#define MARK_APPROVED 0x00001400
#define MARK_POST_DNAT_FULL 0x00002800
#define MARK_POST_DNAT_FOREIGN 0x00000c00
#define MARK_POST_DNAT (foreign ? MARK_POST_DNAT_FOREIGN : MARK_POST_DNAT_FULL)
#define MARK_ROUND 0x000003ff

#define POST_DNAT_RECORDS 65536

/* Whether only the programs of this layout decide. In an upgrade, the programs of an older
 * layout see the records, too. They do not know PACKET_ANSWER and must not get a record for
 * every packet. The agent writes this variable. */
volatile __u32 decides_alone;

/* Returns the part of a mark that the programs own. */
static __always_inline __u32 our_mark(__u32 mark)
{
	return mark & (foreign ? MARK_OURS & ~MARK_OF_OTHERS : MARK_OURS);
}

/* The record of a packet that DNAT may change. */
struct post_dnat_record {
	__u32 mark;
	__u32 slot;
	struct flow flow; /* before DNAT */
	__u8 kind;
	__u8 closes; /* for programs of older layouts: 1 with a FIN, 2 with a RST */
	__u8 pad[2];
};
_Static_assert(sizeof(struct post_dnat_record) == 52, "layout");

/* Reports whether a mark names a record. When a node changes its mode, the programs of pods and
 * those in the host stack are those of different modes for a moment. */
static __always_inline bool names_record(__u32 mark, const struct post_dnat_record *r)
{
	__u32 kind = r->mark & MARK_KIND;

	return (kind == MARK_POST_DNAT_FULL || kind == MARK_POST_DNAT_FOREIGN) && (r->mark == our_mark(mark) || r->mark == (mark & MARK_OURS));
}

/* Records of packets, by index. The programs write it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, POST_DNAT_RECORDS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct post_dnat_record);
} post_dnat SEC(".maps");

/* Reports whether packets of a protocol, for UDP those to a port, are tunneled packets of the kind that a
 * device of this node receives. No pod may send them to nodes: the packet inside would have a source of its choice. */
__noinline int is_tunnel(__u8 protocol, __u16 port)
{
	struct tunnel_kind kind = { .kind = (__u32)protocol << 16 | port };

	return bpf_map_lookup_elem(&tunnel_kinds, &kind) != NULL;
}

/* Reports whether kube-proxy may translate a packet. */
static __always_inline bool may_be_translated(const struct packet *p)
{
	__u8 protocol = p->flow.protocol;

	return p->kind != PACKET_ERROR && (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP);
}
