// SPDX-License-Identifier: Apache-2.0

// Package otlp sends flows as log records to a collector, over OTLP (gRPC).
//
// record.go is pure: it maps an answer of Hubble's interface to a record. An Exporter holds a bounded queue, so that a slow or
// absent collector never delays the stream of flows. Records that do not fit are missed and counted. A record says how
// many, once the collector accepts records again. Records may arrive twice after a lost answer; their flow has an identifier.
//
// The package stores nothing on disk. It does not decide which flows are exported.
package otlp
