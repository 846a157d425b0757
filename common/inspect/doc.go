// SPDX-License-Identifier: Apache-2.0

// Package inspect holds what one node knew and enforced at a moment: a Bundle. It has the objects of the
// cluster, the attachments, the decisions that were read back from the data path, their differences from
// the intended ones, events and metrics.
//
// A Bundle is written by an agent and read by isthmusctl, at once or on another machine. Its file is a
// tar archive, compressed by gzip, of JSON files that people can read too. It contains no secrets, because
// agents read none.
//
// The package does not read the system, and does not decide about flows.
package inspect
