/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include "types.h"

/* Whether another CNI plugin made the interfaces of pods. The programs are compiled twice, so
 * those of other nodes contain no code for such interfaces. */
#ifdef FOREIGN
#define foreign true
#else
#define foreign false
#endif

/* Whether policy of a pod is observed only: its packets pass, and events report what policy
 * would drop. table is that of struct slot. Only foreign interfaces can be observed. */
static __always_inline bool observed(__u32 table)
{
	return foreign && (table & TABLE_OBSERVED);
}

/* The number of a table in the keys of maps. */
static __always_inline __u32 table_number(__u32 table)
{
	return foreign ? table & ~TABLE_OBSERVED : table;
}
