// SPDX-License-Identifier: Apache-2.0

// Package denied turns the answers of Hubble's interface into the denied flows that a page of common/page shows. A Source reads
// them from a relay, or from the agent of a node.
//
// It decides nothing about access, and keeps no flows.
package denied
