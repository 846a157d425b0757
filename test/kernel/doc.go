// SPDX-License-Identifier: Apache-2.0

// Command kernel boots kernels of Debian in QEMU, without KVM, and runs the tests
// of the Linux data path there. Every program is loaded, the real programs decide
// the corpus, and packets go through real interfaces. It prints the instructions
// that each kernel's verifier processed. All kernels run at once.
//
// It builds no kernels and needs no root; the guest is made of one initramfs.
package main
