// SPDX-License-Identifier: Apache-2.0

// Package vfp moves packets as the Virtual Filtering Platform of Windows does,
// in user space: a Switch with a port for every attached endpoint, at which the
// endpoint's ACLs are in force for what it sends and receives, with the state
// that lets replies pass. hns.Rules decides; a Trace tells which rule did.
//
// What is not documented is a setting of Options. Devices connect ports to
// network namespaces (Linux), or to whatever a test wants to see. A Tunnel takes
// what is for other nodes to them by VXLAN; the node itself has no part in it.
//
// TCP and UDP are translated as OutBoundNAT, port mappings and load balancers say;
// fragments and ICMP errors are not. It is what is written about VFP, not VFP.
package vfp
