// SPDX-License-Identifier: Apache-2.0

// Package endpoint keeps the records of a node's endpoints on disk. Each record is a JSON file that is
// replaced atomically: a crash leaves the old or the new record, never half of one.
//
// The records are the only store of attachments and allocated addresses; everything else is rebuilt from
// them. A file that cannot be read is moved aside, never deleted.
//
// It makes no decisions about endpoints: common/agent does. It is not safe for concurrent use.
package endpoint
