/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The order of loads. x86-64 executes loads in the order of the program, arm64 does not. The agent
 * orders its stores to the maps (orderStores of linux/loader). */

/* Whether the processor may execute loads in another order. Set by the loader. */
const volatile __u32 unordered_loads;

/* Orders the loads before and after it. */
static __always_inline void order_loads(void)
{
	__u64 none = 0;

	if (unordered_loads) /* an exchange is a full barrier in BPF */
		asm volatile("" ::"r"(__sync_lock_test_and_set(&none, 1)));
	asm volatile("" ::: "memory");
}

/* Returns a pointer. Loads through it come after the load of zero, which must be 0: an address that
 * depends on a value orders loads on every processor, and costs one addition. */
static __always_inline void *after_load(void *pointer, __u64 zero)
{
	asm volatile("%0 += %1" : "+r"(pointer) : "r"(zero) : "memory");
	return pointer;
}
