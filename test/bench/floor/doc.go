// SPDX-License-Identifier: Apache-2.0

// Package floor holds the compiled programs of bpf/bench*.bpf.c: the least that
// a data path of the kind of ours has to do. Everything else here is generated
// by make gen.
//
// It measures nothing: test/bench/datapath does.
package floor

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel Floor ../../../bpf/bench.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel Least ../../../bpf/benchxdp.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
