// SPDX-License-Identifier: Apache-2.0

// Package etw reads events of one provider of Event Tracing for Windows in real time. Decoder interprets events by
// the names of their fields, as the manifest of the provider on this host describes them; Session gets them from
// Windows. A Source is a Session, or what stands for it.
//
// Everything is bounded: buffers of the session, kinds and fields of events, text, and the queue to the reader.
// Events that do not fit are counted. A provider that ignores the filter and floods the session ends it.
//
// It does not know what an event means: package flowevents does.
package etw
