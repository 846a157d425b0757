// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the boundary between what should be enforced and how an
// operating system does it: the Backend interface, the facts about endpoints
// that cross it, and Plan, the update protocol that every backend executes.
//
// It knows no operating system and no policy: a State says everything.
package dataplane
