// SPDX-License-Identifier: Apache-2.0

// Package vfp moves packets as the Virtual Filtering Platform of Windows does,
// in user space. A Switch has a port for every attached endpoint. The port enforces
// the endpoint's ACLs in both directions, and keeps the state that lets replies
// pass. hns.Rules decides; a Trace names the rule.
//
// What is not documented is a setting of Options. Devices connect ports to
// network namespaces (Linux), or to whatever a test wants to see. A Tunnel takes
// what is for other nodes to them by VXLAN; the node itself has no part in it.
//
// TCP and UDP are translated as OutBoundNAT, port mappings and load balancers say;
// fragments and ICMP errors are not. It is what is written about VFP, not VFP.
package vfp
