// SPDX-License-Identifier: Apache-2.0

// Command kernel boots kernels that Debian packages in QEMU, without KVM, and
// runs the tests of the Linux data path there: every program is loaded, the
// corpus is decided by the real programs, packets go through real interfaces.
// It prints the instructions that each kernel's verifier processed. All kernels run
// at once.
//
// It builds no kernels and needs no root; the guest is made of one initramfs.
package main
