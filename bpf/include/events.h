/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "types.h"
#include "maps.h"
#include "parse.h"
#include "policy.h"

/* Flow events: the verdict on each new flow, and drops. Other packets of known flows cause no
 * event. A reader is not required. A program discards an event if the ring is full or the pod
 * has used its budget. */

/* Events per second and pod, set by the loader; 0 disables events. Each direction has separate
 * budgets for allowed and denied packets, so that a flood of one does not hide the other. */
const volatile __u32 event_rate;
/* Budgets count in units. An event costs event_cost units, the number of jiffies in a second.
 * Each jiffy adds event_rate units. A pod that was idle has event_window units. */
const volatile __u32 event_cost;
const volatile __u32 event_window;
/* Whether allowed new flows cause events too. */
const volatile __u32 event_allowed;

enum event_flag {
	EVENT_EGRESS = 1,     /* sent by the pod of the slot; otherwise sent to it */
	EVENT_V6 = 2,
	EVENT_TRANSLATED = 4, /* the pod sent it to service, the host stack translated that to
			       * flow.dst */
	EVENT_MASQUERADED = 8, /* flow.src sent it, the host stack replaced that source with
			        * service */
};

struct event {
	__u64 time; /* nanoseconds of CLOCK_MONOTONIC */
	struct flow flow;
	struct ip service; /* for EVENT_TRANSLATED and EVENT_MASQUERADED */
	__u32 slot;
	__u32 table; /* of struct slot, as the program read it; 0 for drops without a table
		      * lookup */
	__u32 epoch;
	__u32 class; /* of the remote address, for verdicts; otherwise 0 */
	__u16 service_port;
	__u16 detail; /* ICMP type, or EtherType of a packet that is not IP */
	__u8 id;      /* enum counter_id */
	__u8 flags;   /* enum event_flag */
	__u8 pad[2];
};
_Static_assert(sizeof(struct event) == 88, "layout");

/* The agent polls the ring a few times per second; programs do not wake it up. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 * 1024);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} events SEC(".maps");

/* The time up to which a pod has paid for its events, in units, by direction * 2 + verdict. The
 * programs write it. If two CPUs write at once, one payment is lost. */
struct event_budget {
	__u64 paid[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NO_SLOT + 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct event_budget);
} event_budgets SEC(".maps");

enum event_loss {
	EVENTS_LIMITED = 0, /* over the budget of the pod; denied flows count in verdict_counts instead */
	EVENTS_LOST = 1,    /* the ring was full */
	/* What verdict_counts had for pods whose slots have other pods now. The agent writes it. */
	EVENTS_FORMER = 2,
	EVENT_LOSSES = 3,
};

struct event_count {
	__u64 events;
};

/* Events that were discarded, by enum event_loss. The programs write it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENT_LOSSES);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct event_count);
} event_losses SEC(".maps");

static __always_inline int event_missed(__u32 loss)
{
	struct event_count *c = bpf_map_lookup_elem(&event_losses, &loss);

	if (c)
		c->events++;
	return 0;
}

/* Returns the budget for a kind of event. The empty asm keeps the compiler from removing the
 * mask: the verifier of Linux 6.1 needs it to see that the index is in bounds. */
static __always_inline __u64 *event_paid(struct event_budget *b, __u32 kind)
{
	asm volatile("" : "+r"(kind));
	return &b->paid[kind & 3];
}

/* Reports whether a budget is used up. */
static __always_inline bool event_spent(__u64 paid, __u64 now)
{
	__u64 ahead = paid - now;

	/* If the difference exceeds the window, the pod was idle for long, or an earlier agent
	 * used another rate. */
	return ahead <= event_window && ahead + event_cost > event_window;
}

/* Takes one event from a budget. Returns false if the budget is used up. */
static __always_inline bool take_event_budget(__u32 slot, __u32 kind)
{
	struct event_budget *b = bpf_map_lookup_elem(&event_budgets, &slot);
	__u64 now = bpf_jiffies64() * event_rate, *paid;

	if (!b)
		return false;
	paid = event_paid(b, kind);
	if (event_spent(*paid, now))
		return false;
	*paid = (*paid - now <= event_window ? *paid : now) + event_cost;
	return true;
}

/* Counts a denied flow, if its event would only be discarded. Otherwise returns false: the caller
 * then counts it, and calls emit_event. Used for packets that may come in floods, because it costs
 * less. Must not be called with event_rate 0, where no event is discarded. slot must point to the
 * stack. */
static __always_inline bool count_limited(const __u32 *slot, __u32 dir, __u32 cause)
{
	__u32 kind = dir * 2 + DENY, jiffy;
	struct verdict_count *c;
	struct event_budget *b;
	__u64 jiffies;

	c = bpf_map_lookup_elem(&verdict_counts, slot);
	if (!c)
		return false;
	asm volatile("" : "+r"(dir)); /* as in event_paid */
	jiffies = bpf_jiffies64();
	jiffy = jiffies;
	if (c->spent[dir & 1] != jiffy) {
		b = bpf_map_lookup_elem(&event_budgets, slot);
		if (!b || !event_spent(*event_paid(b, kind), jiffies * event_rate))
			return false;
		c->spent[dir & 1] = jiffy;
	}
	c->limited[dir & 1]++;
	count_cause(kind, cause);
	return true;
}

/* Returns the class of the remote end. It repeats the lookup, because few packets cause an
 * event. One key serves all maps: callers leave little stack, and Linux 6.1 accepts map keys
 * only from the stack. */
static __always_inline __u32 event_class(const struct flow *f, bool egress, bool v6)
{
	const struct ip *remote = egress ? &f->dst : &f->src;
	struct peer_class *found;
	struct prefix6 key;

	if (v6) {
		key.bits = 128;
		__builtin_memcpy(key.addr, remote, 16);
		found = bpf_map_lookup_elem(&peers6, key.addr);
		if (!found)
			found = bpf_map_lookup_elem(&prefixes6, &key);
	} else {
		key.bits = 32;
		__builtin_memcpy(key.addr, &remote->word[3], 4);
		found = bpf_map_lookup_elem(&peers4, key.addr);
		if (!found)
			found = bpf_map_lookup_elem(&prefixes4, &key);
	}
	return found ? found->class & ~PEER_POD : 0;
}

/* Packs those arguments of emit_event that are not pointers. */
#define EVENT(id, flags, detail) ((__u32)(id) | (__u32)(flags) << 8 | (__u32)(detail) << 16)

/* Emits an event about a packet. flow and decided (the word of the slot) are NULL if unknown.
 * other is the destination before DNAT or, with EVENT_MASQUERADED, the client; otherwise NULL.
 * Not inlined, so that the verifier checks it only once. Returns 0. */
__noinline int emit_event(const struct flow *flow, __u32 slot, const struct slot *decided, __u32 what, const struct end *other)
{
	__u8 id = what, flags = what >> 8 & (EVENT_EGRESS | EVENT_V6 | EVENT_MASQUERADED);
	bool egress = flags & EVENT_EGRESS, verdict = id < DROP_NO_ENDPOINT, passes = verdict && id & ALLOW;
	struct event *e;

	if (!event_rate || (passes && !event_allowed))
		return 0;
	if (!take_event_budget(slot, egress * 2 + passes))
		return event_missed(EVENTS_LIMITED);
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		return event_missed(EVENTS_LOST);
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	e->slot = slot;
	e->id = id;
	e->detail = what >> 16;
	if (decided) {
		e->table = decided->table;
		e->epoch = decided->epoch;
	}
	if (flow) {
		e->flow = *flow;
		if (other && (flags & EVENT_MASQUERADED)) {
			e->service = flow->src;
			e->service_port = flow->src_port;
			e->flow.src = other->addr;
			e->flow.src_port = other->port;
		} else if (other) {
			flags |= EVENT_TRANSLATED;
			e->service = other->addr;
			e->service_port = other->port;
		}
		if (verdict)
			e->class = event_class(&e->flow, egress, flags & EVENT_V6);
	}
	e->flags = flags;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}
