/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/types.h>

/* Directions and verdicts have the numbers of model.Direction and
 * model.Verdict. */
enum direction { INGRESS = 0, EGRESS = 1 };
enum verdict { DENY = 0, ALLOW = 1 };

/* What a packet was counted as. The first four are verdicts on new flows:
 * direction * 2 + verdict. The rest are drops for other reasons, but for the last. */
enum counter_id {
	COUNT_INGRESS_DENY = 0,
	COUNT_INGRESS_ALLOW = 1,
	COUNT_EGRESS_DENY = 2,
	COUNT_EGRESS_ALLOW = 3,
	DROP_NO_ENDPOINT = 4,   /* interface without an entry in endpoints */
	DROP_NOT_IP = 5,        /* neither IPv4, IPv6 nor ARP */
	DROP_MALFORMED = 6,     /* headers that do not fit the packet */
	DROP_SPOOFED = 7,       /* source MAC or address cannot come from that interface */
	DROP_FRAGMENT = 8,      /* later fragment before the first */
	DROP_REVOKED = 9,       /* packet of a flow that policy no longer allows */
	DROP_NEIGHBOUR = 10,    /* ARP, neighbour discovery or router message that must not pass here */
	DROP_UNMARKED = 11,     /* the mark of a pod's packet was rewritten */
	DROP_TUNNEL = 12,       /* VXLAN from a pod, or not from the node that its content names */
	COUNT_UNTRACKED = 13,   /* no drop: an allowed new flow for which the flow table had no room */
	COUNTERS = 14,
};

/* How many pods a node can have. */
#define SLOTS 4096
/* Stands for the slot of what belongs to no pod. */
#define NO_SLOT SLOTS

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

/* Whose address the longest prefix names: nobody else may send with it. A miss
 * is an address that is not on this node. */
enum owner {
	OWNER_NODE = 1, /* an address of this node */
	OWNER_POD = 2,  /* in this node's pod ranges, or a pod's of this node */
};

struct owner_entry {
	__u32 owner; /* enum owner */
};

/* Which node sends tunneled packets from an underlay address, and which node an
 * inner address belongs to: the two must be the same. */
struct tunnel_node {
	__u64 id; /* of the node's name */
};

struct addr4 {
	__u8 addr[4] ALIGNED;
};

struct addr6 {
	__u8 addr[16] ALIGNED;
};

/* By which device a range of other nodes' pods is reached, and their packets come. */
struct way {
	__u32 ifindex;
	__u32 direct; /* whether packets may bypass the stack */
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
	CONN_ESTABLISHED = 1, /* packets in both, or one end of TCP has closed */
	CONN_CLOSING = 2,     /* both ends of TCP have closed, or one was reset */
};

/* What policy has said of one end of a flow, if that end is a local pod. */
enum role {
	ROLE_OPENED = 1,   /* the pod opened it: its egress policy allowed */
	ROLE_ACCEPTED = 2, /* the pod was reached: its ingress policy allowed */
	ROLE_OF_HOST = 4,  /* accepted because the pod's own host sent it */
	ROLE_REVOKED = 8,  /* a later policy took the roles back */
};

/* The roles of an end, and the epoch of its slot under which policy granted them:
 * a packet passes when an end has a role under the current epoch. Written as one
 * word, so that no role is ever seen with the epoch of another verdict. */
struct approval {
	__u32 epoch;
	__u8 roles; /* enum role */
	__u8 pad[3];
};
_Static_assert(sizeof(struct approval) == 8, "written as one word");

/* How the packets of a flow travel. Changed by atomic operations only. */
enum conn_flag {
	/* From pod to pod of this node, past the host's stack. Both ends were
	 * decided together. A flow that the stack has seen never gets it: the stack
	 * may have translated it. */
	CONN_DIRECT = 1,
	/* The pod opened it to an address that the stack translates: the egress
	 * verdict is about the backend. */
	CONN_TRANSLATED = 2,
	/* Between a pod of this node and one of another, past the stack in both
	 * directions. The stack's connection tracking knew nothing of the flow when
	 * it was opened. */
	CONN_REMOTE = 4,
	/* The remote address is one of this node's, which masquerades a client: the
	 * ingress verdict is about the client. */
	CONN_MASQUERADED = 8,
	/* The remote address is no pod's: the stack may translate what is sent to it,
	 * answers included. */
	CONN_OUTSIDE = 16,
};

/* How far the closing of a TCP connection has come at one end. */
enum tcp_flag {
	TCP_FIN = 1,    /* the end sent a FIN */
	TCP_CLOSED = 2, /* the other end has acknowledged it */
};

/* A flow that policy has decided on. Arrays are by end, in order of the key. */
struct conn {
	__u32 seen;  /* low bits of jiffies at the last packet */
	__u32 flow_flags; /* enum conn_flag */
	struct approval end[2];
	__u32 sent[2]; /* packets of each end */
	__u8 state;  /* enum conn_state */
	__u8 tcp[2]; /* enum tcp_flag */
	__u8 pad;
	/* Of a pod at the end of a CONN_DIRECT flow, and of the local end of a
	 * CONN_REMOTE one: its slot. Of other ends: the index of the device that
	 * their packets come by; 0 is the host itself. */
	__u32 place[2];
	__u16 share; /* the slot whose share of the table the entry is in */
	__u16 backend_port;
	/* Of CONN_TRANSLATED: where the packets really go; IPv4 in the last four. */
	__u8 backend[16] ALIGNED;
	/* Of CONN_MASQUERADED: who really sends. */
	__u8 client[16] ALIGNED;
	/* Of TCP: the last acknowledgment that a local pod at that end sent, and the
	 * one that acknowledges the FIN of that end. */
	__be32 acked[2];
	__be32 fin[2];
};
_Static_assert(sizeof(struct conn) == 96, "layout");

/* How many entries of conns4 and conns6 were made for a pod. */
struct flow_share {
	__s32 flows[2]; /* IPv4, IPv6 */
};

/* Ports of a datagram whose first fragment passed. */
struct datagram {
	__u8 src[16] ALIGNED; /* IPv4 in the last four */
	__u8 dst[16] ALIGNED;
	__u32 id; /* as on the wire; 16 bits for IPv4 */
	__u32 seen; /* low bits of jiffies */
	__u16 src_port;
	__u16 dst_port;
	__u8 protocol;
	__u8 pad[3];
};
_Static_assert(sizeof(struct datagram) == 48, "layout");

/* Each pod has that many places for datagrams of a direction. */
#define DATAGRAMS 8
