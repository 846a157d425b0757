// SPDX-License-Identifier: Apache-2.0

// Package watch follows the objects of an API server. APIServer is a kube.Source: it lists and watches the
// built-in kinds, and those custom kinds that discovery finds.
//
// A feed converts objects on arrival and keeps only changes; collect applies them to the next Snapshot. An
// invalid object leaves its last valid version in force. After an outage all kinds proceed together.
//
// It writes nothing: package writeback does, with the credentials of an APIServer.
package watch
