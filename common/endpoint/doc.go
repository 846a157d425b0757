// SPDX-License-Identifier: Apache-2.0

// Package endpoint keeps the records of a node's endpoints on disk: one JSON
// file each, replaced atomically, so that a crash leaves the old record or the
// new one and never half of either.
//
// The records are the only store of what is attached and which addresses are
// given out; everything else is rebuilt from them. A file that cannot be read
// is moved aside, never deleted.
//
// It decides nothing about endpoints: common/agent does. It is not safe for
// concurrent use.
package endpoint
