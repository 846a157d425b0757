// SPDX-License-Identifier: Apache-2.0

// Package conflist edits CNI configuration lists of other networks: it adds the entry of isthmus-cni and
// removes it. It edits the text, so that the order, unknown keys and white space of the rest stay. Removing an
// added entry restores the list byte for byte, also after a restart and without a copy of the original.
//
// It reads and writes no files: package install does.
package conflist
