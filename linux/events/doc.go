// SPDX-License-Identifier: Apache-2.0

// Package events makes sense of what the programs tell of single packets. A
// Record is what they wrote; a Book knows which endpoint had which slot, and what
// its table said, so that the record becomes a model.FlowEvent with pod and cause.
//
// Records are read late, when the maps may hold other policies than they were
// decided by. Epochs tell, as none is used twice, and numbers of tables, which
// stand for the same rules while they are used: a record is only explained by a
// State under which its slot had its epoch, or at least its table. If that is no
// longer known, or not known yet, the event says so and names no policy.
//
// It does not read the ring: linux/loader does.
package events
