// SPDX-License-Identifier: Apache-2.0

// Command kernel boots kernels of Debian in QEMU, without KVM, and runs the tests of the Linux
// data path in them. The tests load every program, run the corpus through the programs, and
// send packets through real interfaces. The command prints the number of instructions that
// each kernel's verifier processed. All kernels run concurrently; a kernel that has two CPUs of
// this machine for itself runs in two guests.
//
// It builds no kernels and needs no root; a guest has one initramfs. Packages of another architecture come from the same
// archive, with package lists of their own.
package main
