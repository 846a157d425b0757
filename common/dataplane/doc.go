// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the boundary between the desired state and an operating system. It holds the Backend
// interface, the facts about endpoints that cross it, and Plan, the update protocol that every backend
// executes.
//
// Package dataplanetest has a Backend in memory for tests.
//
// It knows no operating system and no policy: a State contains all that is to be enforced.
package dataplane
