// SPDX-License-Identifier: Apache-2.0

// Package probe is the program in the pods of a connectivity test. Its server answers by TCP and UDP with its name and the
// address that it sees. Its client tries targets and says how each attempt ended. It needs no rights, no files and no
// ports below 1024.
//
// It does not know which attempts should succeed.
package probe
