// SPDX-License-Identifier: Apache-2.0

// Package bpfobj holds the compiled programs of bpf/ and the Go twins of the
// structs that they share with user space. Everything else here is generated
// by make gen and committed, so that building needs no clang.
//
// It does not load anything: linux/loader does.
package bpfobj

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type counter -type slot -type endpoint -type interface -type attachment -type slot_index -type ifindex -type addr4 -type addr6 -type prefix4 -type prefix6 -type peer_class -type way -type port_class -type verdict_key -type verdict_row -type row -type table_id -type table_number -type conn_key4 -type conn_key6 -type approval -type conn -type datagram -type flow_share -type owner_entry -type carried_flow -type adoption -type ledger_hand -type event -type event_budget -type event_count Pod ../../bpf/pod.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type sieve -type deny_entry -type counter -type addr4 -type addr6 -type prefix4 -type prefix6 Xdp ../../bpf/xdp.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type tunnel_node Egress ../../bpf/egress.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
