// SPDX-License-Identifier: Apache-2.0

// Command isthmus-relay serves the flows of all nodes over Hubble's Observer interface.
//
// It reads flags and connects common/relay to its listener, and to the API server for reviews of tokens and rights. It
// reads no objects: an agent tells it the nodes.
package main
