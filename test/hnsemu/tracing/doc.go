// SPDX-License-Identifier: Apache-2.0

// Package tracing is Event Tracing of an emulated Windows host: sessions, and the provider VfpExt with the events
// that were recorded on Windows Server 2022 and 2025. It encodes manifests and events as tdh.h and the recordings
// have them, and shares no code with the decoder.
//
// Some points are choices without a source: numbers and texts of the types of ACL rules, and ports of ICMP. So are the
// id and field names of the event for IPv6. A rule that allows writes an event too. Options change some of them.
//
// It keeps no log files, and has one provider.
package tracing
