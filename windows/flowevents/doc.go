// SPDX-License-Identifier: Apache-2.0

// Package flowevents explains packets that the ACLs of HNS dropped. VFP, which enforces ACLs, writes an event of ETW
// when a rule decides. The event names the packet, but not the ACL. So the Watcher decides the packet again by the
// State that the node enforced at that time, which names policy and rule.
//
// Only denied flows are reported, because it is not known whether VFP writes events about allowed ones. Each
// pod has the same budgets as on Linux, and events beyond are counted.
//
// It does not read ETW: package etw does.
package flowevents
