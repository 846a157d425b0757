/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/types.h>

/* The numbers are those of model.Direction and model.Verdict. */
enum direction {
	INGRESS = 0,
	EGRESS = 1,
};

enum verdict {
	DENY = 0,
	ALLOW = 1,
};

/* Indexes of counters. The first four are verdicts on new flows and equal direction * 2 + verdict;
 * programs count them in verdict_counts and cause_counts. Those that are not listed count drops for
 * other reasons, by enum outcome. */
enum counter_id {
	COUNT_INGRESS_DENY = 0,
	COUNT_INGRESS_ALLOW = 1,
	COUNT_EGRESS_DENY = 2,
	COUNT_EGRESS_ALLOW = 3,
	COUNT_UNTRACKED = 13, /* an allowed new flow that found the flow table full */
	COUNTERS = 15,
};

/* What to do with a packet: the result of all functions that parse or decide. A positive value
 * is a reason to drop the packet, and the index of its counter. Functions that only check return
 * bool. Functions that read or write return 0 or a negative number, as the kernel's helpers do. */
enum outcome {
	ACT_PASS = 0,
	ACT_DENIED = -1,       /* drop; already counted */
	ACT_LOCAL = -2,        /* redirect into the interface of the pod at the other end */
	ACT_POST_DNAT = -3,    /* decide after DNAT in the host stack */
	ACT_REMOTE = -4,       /* forward to the pod of another node at the other end */
	ACT_ANSWER = -5,       /* pass as an answer, unless the host stack translates it */
	ACT_FLOW = -6,         /* not decided: the packet is part of a flow */
	ACT_UNKNOWN = -7,      /* not decided: the flow has left the flow table meanwhile */
	DROP_NO_ENDPOINT = 4,  /* interface without an entry in endpoints */
	DROP_NOT_IP = 5,       /* neither IPv4, IPv6 nor ARP */
	DROP_MALFORMED = 6,    /* headers that do not fit the packet, or name further destinations */
	DROP_SPOOFED = 7,      /* source MAC or address is not valid on that interface */
	DROP_FRAGMENT = 8,     /* later fragment that arrives before the first one */
	DROP_REVOKED = 9,      /* packet of a flow that policy no longer allows */
	DROP_NEIGHBOUR = 10,   /* ARP, neighbour discovery or router message that is not
				* allowed here */
	DROP_UNMARKED = 11,    /* something rewrote the mark of a packet from a pod */
	DROP_TUNNEL = 12,      /* tunneled packet from a pod, or an inner source that belongs to
				* another node */
	DROP_PORT_TAKEN = 14,  /* DNAT gave the flow the ports of a connection on the fast path */
};

enum slot_number {
	SLOTS = 4096,    /* the maximum number of pods on a node */
	NO_SLOT = SLOTS, /* in records that concern no pod */
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* The verdicts on new flows of a pod. limited has the denied flows whose events were discarded
 * because the pod had used its budget, by direction; flows has all others, by the first four
 * counter_ids. spent is the last jiffy in which that budget was found used up: a budget grows once
 * in a jiffy, so until the next one its packets need not look at it again. One cache line. */
struct verdict_count {
	__u64 flows[4];
	__u64 limited[2];
	__u32 spent[2];
	__u64 pad;
};

/* The table that an endpoint uses. The agent writes it as one 64-bit word, so a packet sees
 * either the old pair or the new pair. An epoch is never reused, for any endpoint. */
struct slot {
	__u32 table; /* bits 0 and 1: verdict of unlisted classes, by direction; enum table_flag */
	__u32 epoch;
};

enum table_flag {
	TABLE_OBSERVED = 1u << 31, /* the pod of the slot is observed, see mode.h; not part of the
				    * number of the table */
};
_Static_assert(sizeof(struct slot) == 8, "written as one word");

/* The generation of the maps. The agent increments it before each step of a change. */
struct generation {
	__u32 number;
};

/* Addresses in keys and values are bytes in network order, so a map dump shows them as people
 * write them. The alignment lets programs copy them as words. */
#define ALIGNED __attribute__((aligned(4)))

/* The attachment of a pod. An address that the pod does not have is zero. */
struct endpoint {
	__u8 ip4[4] ALIGNED;
	__u8 ip6[16] ALIGNED;
	__u8 mac[6] ALIGNED;
	__u8 host_mac[6]; /* of the host end of the veth pair */
	__u32 slot;       /* index into slots and attachments */
};
_Static_assert(sizeof(struct endpoint) == 36, "layout");

/* A copy of an endpoint in an array, which needs no hash to find it. */
struct interface {
	__u32 ifindex; /* 0: entry is free. With INTERFACE_KEPT: entry is taken, but holds no
		        * endpoint. */
	struct endpoint endpoint;
	__u32 pad[6];
};
_Static_assert(sizeof(struct interface) == 64, "a cache line");

enum interface_number {
	INTERFACES = 8192,         /* the number of entries of the map interfaces */
	INTERFACE_KEPT = 1u << 31, /* flag of interface.ifindex */
};

/* How other pods of this node reach the pod of a slot. The two MAC addresses make the Ethernet
 * header that the pod must receive. */
struct attachment {
	__u8 mac[6];
	__u8 host_mac[6];
	__u32 ifindex; /* of the host end; 0 if the slot is free or the pod has a bandwidth
		        * limit */
};
_Static_assert(sizeof(struct attachment) == 16, "layout");

struct slot_index {
	__u32 slot;
};

struct ifindex {
	__u32 ifindex;
};

/* The owner of an address, from the longest matching prefix. Only the owner may use the address
 * as a source. A miss means that the address is not on this node. */
enum owner {
	OWNER_NODE = 1, /* an address of this node */
	OWNER_POD = 2,  /* in a pod range of this node, or the address of a pod on this node */
	OWNER_MASK = 3,
	OWNER_BROADCAST = 4, /* flag: this node receives by the address, as may others: broadcast or anycast */
};

struct owner_entry {
	__u32 owner; /* enum owner */
};

/* The node that sends tunneled packets from an underlay address, and the node that owns an
 * inner address. The two must be equal. */
struct tunnel_node {
	__u64 id; /* hash of the node name */
};

#define TUNNEL_KINDS 64

/* A kind of tunneled packets. */
struct tunnel_kind {
	__u32 kind; /* protocol * 65536 + UDP port; the port is 0 for tunnels directly in IP */
};

struct addr4 {
	__u8 addr[4] ALIGNED;
};

struct addr6 {
	__u8 addr[16] ALIGNED;
};

/* The device that leads to a pod range of other nodes. Packets from the range arrive by the
 * same device. */
struct node_route {
	__u32 ifindex;
	__u32 fast_path; /* whether packets may use the fast path */
};

/* A key of an LPM trie starts with the prefix length in bits. */
struct prefix4 {
	__u32 bits;
	__u8 addr[4] ALIGNED;
};

struct prefix6 {
	__u32 bits;
	__u8 addr[16] ALIGNED;
};

struct peer_class {
	__u32 class; /* without enum class_flag, the number of the class */
};

enum class_flag {
	PEER_POD = 1u << 31, /* the address belongs to a pod, so it is the real destination. For the
			      * few exceptions see post_dnat.h */
};

struct port_class {
	__u16 class;
};

/* One row of a table: its verdict for one class of peers. */
struct verdict_key {
	__u32 table;
	__u32 peer; /* class * 2 + direction */
};

struct verdict_row {
	__u32 row;    /* enum row_number, or an index into rows */
	__u32 causes; /* the number of a cause, or CAUSES_BY_PORT with a place in cause_blocks */
};

/* Rows that need no entry in rows. */
enum row_number {
	ROW_DENY = 0,
	ROW_ALLOW = 1,
};

/* A row whose verdict depends on the port. Bit n is the verdict for port class n. */
#define PORT_CLASSES 1024
#define CLOSED_PORTS (PORT_CLASSES - 1) /* a class that every such row denies */

struct row {
	__u64 allow[PORT_CLASSES / 64];
};

/* Numbers of causes: of what leads to a verdict. Those from CAUSE_FIRST on are in the map causes. */
enum cause_number {
	CAUSE_NONE = 0,    /* counted as CAUSE_OTHER */
	CAUSE_OTHER = 1,   /* + direction * 2 + verdict: causes that are not counted separately */
	CAUSE_SELF = 5,    /* + direction: a pod always reaches itself */
	CAUSE_NODE = 7,    /* the node of a pod always reaches it */
	CAUSE_PENDING = 8, /* + direction: policy is not known yet */
	CAUSE_FIRST = 10,
	CAUSES = 8192,
};

/* A row whose cause depends on the port. The causes of its port classes are in cause_blocks: class n
 * is number n % 8 of block place + n / 8. The row has width blocks; classes beyond them have the
 * cause of class 0. The agent writes width << CAUSES_WIDTH | place. */
enum cause_layout {
	CAUSES_BY_PORT = 1u << 31,
	CAUSES_WIDTH = 20, /* bits of the place */
	BLOCK_CAUSES = 8,
	CAUSE_BLOCKS = 16384, /* the number of entries of cause_blocks */
	/* The number of entries of table_causes. The place of a table is its number without bits 0
	 * and 1, modulo this. */
	TABLE_PLACES = 16384,
};

struct cause_block {
	__u16 cause[BLOCK_CAUSES];
};

/* The causes of the verdicts in bits 0 and 1 of a table number, as in verdict_row. */
struct table_cause {
	__u32 table;
	__u32 causes[2]; /* by direction */
};

/* What a number stands for. Texts end with a zero byte unless they fill the field. A counter never
 * counts for a rule that says something else: its meaning then differs. */
struct cause {
	__u64 meaning; /* hash of the rule's text; 0 for causes other than rules */
	__u32 rule;    /* index of the rule in its policy now */
	__u8 reason;   /* model.Reason */
	__u8 direction; /* enum direction */
	__u8 verdict;   /* enum verdict */
	__u8 tier;      /* model.Tier */
	char kind[32];  /* of the policy */
	char namespace[64];
	char name[256];
	char uid[40];
	char rule_name[104];
};
_Static_assert(sizeof(struct cause) == 512, "layout");

struct cause_key {
	__u32 cause;
};

/* The number of new flows that a cause decided. */
struct cause_count {
	__u64 flows;
};

/* The identity of the model.Table that a table number stands for. */
struct table_id {
	__u8 id[16];
};

struct table_number {
	__u32 table;
};

/* A flow. Both directions have the same key: the two ends, ordered by address, then port. Ports
 * are in host byte order. For ICMP echo both ports are the identifier. Protocols without ports
 * have 0. */
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

/* The state of a flow. It selects the idle timeout. */
enum conn_state {
	CONN_OPENING = 0,     /* packets in one direction only */
	CONN_ESTABLISHED = 1, /* packets in both directions, or one end of TCP has closed */
	CONN_CLOSING = 2,     /* both ends of TCP have closed, or one end sent a reset */
};

/* The verdict of policy for one end of a flow, if that end is a local pod. */
enum role {
	ROLE_OPENED = 1,   /* the pod opened the flow, and its egress policy allowed it */
	ROLE_ACCEPTED = 2, /* another end opened the flow, and the ingress policy of the pod
			    * allowed it */
	ROLE_OF_HOST = 4,  /* accepted because the node of the pod sent it */
	ROLE_REVOKED = 8,  /* a later policy denies the flow */
};

/* The roles of one end, and the epoch of its slot when policy authorised them. A packet passes
 * if its end has a role under the current epoch. The struct is written as one word, so no
 * reader combines a role with the epoch of another verdict. */
struct approval {
	__u32 epoch;
	__u8 authorised; /* enum role */
	__u8 pad[3];
};
_Static_assert(sizeof(struct approval) == 8, "written as one word");

/* The path of a flow. Only atomic operations change these flags. */
enum conn_flag {
	/* Between two pods of this node, on the fast path. One evaluation decided both ends. A
	 * flow that the host stack has seen never gets this flag, because the host stack may
	 * translate its addresses. */
	CONN_DIRECT = 1,
	/* The pod opened the flow to an address that the host stack translates (DNAT). The
	 * egress verdict is about the backend. */
	CONN_TRANSLATED = 2,
	/* Between a pod of this node and a pod of another node, on the fast path in both
	 * directions. Connection tracking in the kernel did not know the flow when it was
	 * opened. */
	CONN_REMOTE = 4,
	/* The remote end is an address and port of this node, which masquerades a client: another
	 * host, or a process of this node. Or it is a pod of this node whose port the host stack
	 * replaced. The ingress verdict is about the client. */
	CONN_MASQUERADED = 8,
	/* The remote address does not belong to a pod. The host stack may translate packets to
	 * it, answers included. */
	CONN_OUTSIDE = 16,
	/* The last packet that opened the flow was dropped with DROP_PORT_TAKEN. At the next
	 * one, from_pod makes the connection on the fast path known to connection tracking. */
	CONN_PORT_TAKEN = 32,
};

/* Marks the place of an end that is a slot. A flow that leaves the fast path keeps its slots, and
 * no device has such an index. */
#define PLACE_IS_SLOT 0x80000000u

/* The progress of closing a TCP connection, for one end. */
enum tcp_flag {
	TCP_FIN = 1,    /* the end sent a FIN */
	TCP_CLOSED = 2, /* the other end has acknowledged the FIN */
};

/* A flow that policy has evaluated. Arrays are indexed by end, in the order of the key. */
struct conn {
	__u32 version; /* of the entry; see conntrack.h */
	__u32 seen;    /* low bits of jiffies when the last packet passed */
	__u32 flow_flags; /* enum conn_flag */
	__u8 state;  /* enum conn_state */
	__u8 tcp[2]; /* enum tcp_flag */
	__u8 pad;
	struct approval end[2];
	__u32 sent[2]; /* packets from each end */
	/* For a pod at either end of a CONN_DIRECT flow, and for the local end of a CONN_REMOTE
	 * flow: its slot, with PLACE_IS_SLOT. For all other ends: the index of the device by which
	 * their packets arrive; 0 is the host itself. */
	__u32 place[2];
	__u16 share; /* the slot that the entry counts against, see flow_shares */
	__u16 backend_port;
	/* For CONN_TRANSLATED: the destination after DNAT. IPv4 uses the last four bytes. */
	__u8 backend[16] ALIGNED;
	/* For CONN_MASQUERADED: the real source. */
	__u8 client[16] ALIGNED;
	/* For TCP: the last acknowledgment number that a local pod at that end sent, and the
	 * number that acknowledges the FIN of that end. */
	__be32 acked[2];
	__be32 fin[2];
	/* For CONN_MASQUERADED: the real source port. Earlier versions of layout v4 had padding
	 * here. 0 means that the port is not known. */
	__u16 client_port;
	__u16 pad2;
};
_Static_assert(sizeof(struct conn) == 104, "layout");

/* An entry of the flow table. The key and what every packet reads are one cache line. */
struct conn_entry4 {
	struct conn_key4 key;
	struct conn conn;
	__u8 pad[8];
};
_Static_assert(sizeof(struct conn_entry4) == 128, "two cache lines");

struct conn_entry6 {
	struct conn_key6 key;
	struct conn conn;
};
_Static_assert(sizeof(struct conn_entry6) == 144, "layout");

/* The index of an entry in conns4 or conns6. */
struct conn_index {
	__u32 index;
};

struct conn_hint {
	__u32 hint; /* the index in the lower 24 bits; above, bits of the hash of the key */
};

/* The number of entries of conns4 and conns6 that a pod caused. */
struct flow_share {
	__s32 flows[2]; /* IPv4, IPv6 */
};

/* The ports of a fragmented datagram whose first fragment passed. */
struct datagram {
	__u8 src[16] ALIGNED; /* IPv4 uses the last four bytes */
	__u8 dst[16] ALIGNED;
	__u32 id; /* as on the wire; 16 bits for IPv4 */
	__u32 seen; /* low bits of jiffies */
	__u16 src_port;
	__u16 dst_port;
	__u8 protocol;
	__u8 pad[3];
};
_Static_assert(sizeof(struct datagram) == 48, "layout");

/* The number of entries of datagrams for each pod and direction. */
#define DATAGRAMS 8
