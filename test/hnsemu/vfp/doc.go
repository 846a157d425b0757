// SPDX-License-Identifier: Apache-2.0

// Package vfp moves packets as the Virtual Filtering Platform of Windows does,
// in user space: a Switch with a port for every attached endpoint, at which the
// endpoint's ACLs are in force for what it sends and receives, with the state
// that lets replies pass. hns.Rules decides; a Trace tells which rule did.
//
// What is not documented is a setting of Options. Devices connect ports to
// network namespaces (Linux), or to whatever a test wants to see.
//
// A Tunnel takes what is for other nodes to them by VXLAN. The node itself has
// no part in an overlay network.
//
// It does not translate addresses or balance load, and it is what is written
// about VFP, not VFP.
package vfp
