// SPDX-License-Identifier: Apache-2.0

// Package mapview explains the maps that the programs of bpf/ read and write. It lists the table of each slot, the class
// of each address, the ports that each row of a table allows, and why known flows pass.
//
// It is pure and builds on any OS. linux/loader reads the maps. It knows no pod names and no policies.
package mapview
