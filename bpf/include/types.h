/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/types.h>

/* Directions and verdicts have the numbers of model.Direction and
 * model.Verdict. */
enum direction { INGRESS = 0, EGRESS = 1 };
enum verdict { DENY = 0, ALLOW = 1 };

/* What a packet was counted as. The first four are verdicts on new flows:
 * direction * 2 + verdict. The rest are drops for other reasons. */
enum counter_id {
	COUNT_INGRESS_DENY = 0,
	COUNT_INGRESS_ALLOW = 1,
	COUNT_EGRESS_DENY = 2,
	COUNT_EGRESS_ALLOW = 3,
	DROP_NO_ENDPOINT = 4,   /* interface without an entry in endpoints */
	DROP_NOT_IP = 5,        /* neither IPv4, IPv6 nor ARP */
	DROP_MALFORMED = 6,     /* headers that do not fit the packet */
	DROP_SPOOFED = 7,       /* source MAC or address is not the pod's */
	DROP_FRAGMENT = 8,      /* later fragment before the first */
	DROP_REVOKED = 9,       /* packet of a flow that policy no longer allows */
	DROP_NEIGHBOUR = 10,    /* router advertisement or redirect from a pod */
	DROP_UNMARKED = 11,     /* somebody rewrote the mark of a pod's packet */
	COUNTERS = 12,
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* The table that an endpoint is under. Written as one 64-bit word, so that a
 * packet sees either the old pair or the new one. The epoch is never used
 * twice, for any endpoint. */
struct slot {
	__u32 table; /* bits 0 and 1: verdict of unlisted classes by direction */
	__u32 epoch;
};
_Static_assert(sizeof(struct slot) == 8, "written as one word");

/* Which stage of a change of the maps it is. Counts up before every stage. */
struct stage {
	__u32 number;
};

/* Addresses in keys and values are bytes in network order, so that a dump of a
 * map reads as one writes them; aligned, so that programs move them as words. */
#define ALIGNED __attribute__((aligned(4)))

/* A pod's attachment. An address that it does not have is zero. */
struct endpoint {
	__u8 ip4[4] ALIGNED;
	__u8 ip6[16] ALIGNED;
	__u8 mac[6] ALIGNED;
	__u8 host_mac[6]; /* of the host's end of the pair */
	__u32 slot;       /* index into slots and attachments */
};
_Static_assert(sizeof(struct endpoint) == 36, "layout");

/* A copy of an endpoint where no hash is needed to find it. */
struct interface {
	__u32 ifindex; /* 0 if the place is free; with INTERFACE_KEPT it is taken, but has nothing to say */
	struct endpoint endpoint;
	__u32 pad[6];
};
_Static_assert(sizeof(struct interface) == 64, "a cache line");

#define INTERFACE_KEPT (1u << 31)
#define INTERFACES 8192

/* Where the pod of a slot is reached from other pods of this node. The first
 * two are the Ethernet header that it should see. */
struct attachment {
	__u8 mac[6];
	__u8 host_mac[6];
	__u32 ifindex; /* of the host's end; 0 if the slot is free, or the pod's bandwidth limited */
};
_Static_assert(sizeof(struct attachment) == 16, "layout");

struct slot_index {
	__u32 slot;
};

struct ifindex {
	__u32 ifindex;
};

struct addr4 {
	__u8 addr[4] ALIGNED;
};

struct addr6 {
	__u8 addr[16] ALIGNED;
};

/* By which device a range of other nodes' pods is reached. */
struct way {
	__u32 ifindex;
};

/* Keys of LPM tries start with the number of bits that count. */
struct prefix4 {
	__u32 bits;
	__u8 addr[4] ALIGNED;
};

struct prefix6 {
	__u32 bits;
	__u8 addr[16] ALIGNED;
};

struct peer_class {
	__u32 class; /* PEER_POD is no part of the number */
};

/* The address is a pod's: nobody translates what is sent to it. */
#define PEER_POD (1u << 31)

struct port_class {
	__u16 class;
};

/* One row of a table: what it says of one class of peers. */
struct verdict_key {
	__u32 table;
	__u32 peer; /* class * 2 + direction */
};

struct verdict_row {
	__u32 row; /* ROW_DENY, ROW_ALLOW, or an index into rows */
};

enum { ROW_DENY = 0, ROW_ALLOW = 1 };

/* A row that does not say the same of all ports: bit n is the verdict for
 * class n of ports. */
#define PORT_CLASSES 1024

struct row {
	__u64 allow[PORT_CLASSES / 64];
};

/* Where a table number comes from: the identity of model.Table. */
struct table_id {
	__u8 id[16];
};

struct table_number {
	__u32 table;
};

/* A flow, the same for both directions of its packets: the two ends in order
 * of address, then port. Ports in host byte order; for ICMP echo both are the
 * identifier; 0 for protocols without ports. */
struct conn_key4 {
	__u8 addr[2][4] ALIGNED;
	__u16 port[2];
	__u8 protocol;
	__u8 pad[3];
};
_Static_assert(sizeof(struct conn_key4) == 16, "layout");

struct conn_key6 {
	__u8 addr[2][16] ALIGNED;
	__u16 port[2];
	__u8 protocol;
	__u8 pad[3];
};
_Static_assert(sizeof(struct conn_key6) == 40, "layout");

/* How far a flow has come; decides how long it may be idle. */
enum conn_state {
	CONN_OPENING = 0,     /* packets in one direction only */
	CONN_ESTABLISHED = 1, /* packets in both */
	CONN_CLOSING = 2,     /* FIN or RST seen */
};

/* What policy has said of one end of a flow, if that end is a local pod. A
 * packet passes when an end has a role under the current epoch of its slot. */
enum side_flag {
	SIDE_OPENED = 1,   /* the pod opened it: its egress policy allowed */
	SIDE_ACCEPTED = 2, /* the pod was reached: its ingress policy allowed */
	SIDE_REVOKED = 4,  /* a later policy took the roles back */
};

/* How the packets of a flow travel. */
enum conn_flag {
	/* From pod to pod of this node, past the stack. Both ends were decided
	 * together. A flow that the stack has seen never gets it: the stack may
	 * have translated it. */
	CONN_DIRECT = 1,
	/* The egress verdict was taken behind the stack's translation. */
	CONN_TRANSLATED = 2,
	/* Between a pod of this node and one of another, past the stack in both
	 * directions. The stack's connection tracking knew nothing of the flow when
	 * it was opened. */
	CONN_REMOTE = 4,
};

struct conn {
	__u32 seen; /* low bits of jiffies at the last packet */
	__u8 state;
	__u8 side[2]; /* enum side_flag per end, in order of the key */
	__u8 flags;   /* enum conn_flag */
	__u32 epoch[2]; /* of the slot when the roles were last confirmed */
	__u64 packets[2]; /* sent by each end */
	__u64 bytes[2];
	/* Of CONN_DIRECT: the slots of the ends. Of CONN_REMOTE: that of the end
	 * here; and the low half of the index of the device that leads to the other. */
	__u16 slot[2];
	__u16 backend_port;
	__u16 pad;
	/* Of CONN_TRANSLATED: where the packets really go; IPv4 in the last four. */
	__u8 backend[16] ALIGNED;
};
_Static_assert(sizeof(struct conn) == 72, "layout");

/* Ports of a datagram whose first fragment was seen. */
struct fragment_key {
	__u8 src[16] ALIGNED; /* IPv4 in the last four */
	__u8 dst[16] ALIGNED;
	__u32 id; /* as on the wire; 16 bits for IPv4 */
	__u8 protocol;
	__u8 pad[3];
};
_Static_assert(sizeof(struct fragment_key) == 40, "layout");

struct fragment {
	__u16 src_port;
	__u16 dst_port;
};
