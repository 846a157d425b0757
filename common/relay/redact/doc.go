// SPDX-License-Identifier: Apache-2.0

// Package redact cuts flows down to what a client may read. Every reader of merged flows uses it.
//
// A View belongs to one request. It gives the request for the agents, which selects by namespace only, and turns
// each answer into what the client sees, or into nothing. The filters of the client act on what is left: a filter
// on a hidden field would reveal it. All functions are pure.
//
// It does not decide what a client may read: common/access does.
package redact
