// SPDX-License-Identifier: Apache-2.0

// Package vfp moves packets as the Virtual Filtering Platform of Windows does,
// in user space. A Switch has a port for every attached endpoint. The port enforces
// the endpoint's ACLs in both directions, and keeps the state that lets replies
// pass. hns.Rules decides; a Trace names the rule.
//
// Options sets the behaviour that is not documented. Devices connect ports to network namespaces (Linux), or to
// recorders of a test. A Tunnel sends packets for pods of other nodes by VXLAN; the host stack of the node is not
// involved.
//
// It translates TCP and UDP by OutBoundNAT, port mappings and load balancers, but not fragments and ICMP errors.
// It implements public descriptions of VFP, and proves nothing about VFP itself.
package vfp
