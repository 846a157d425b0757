// SPDX-License-Identifier: Apache-2.0

// Command kernel boots kernels of Debian in QEMU, without KVM, and runs the tests of the Linux
// data path in them. The tests load every program, run the corpus through the programs, and
// send packets through real interfaces. The command prints the number of instructions that
// each kernel's verifier processed. Each kernel runs in two guests, and as many guests run at once
// as this machine has CPUs.
//
// It builds no kernels and needs no root; a guest has one initramfs. Packages of another architecture come from the same
// archive, with package lists of their own.
package main
