// SPDX-License-Identifier: Apache-2.0

// Package sources gives the programs the valid origin of each source address: which addresses belong to this
// node and its pods, and which node sends which inner sources by tunnel. The programs drop packets that
// claim a source from which they cannot come. The package checks the addresses of interfaces every second.
//
// It is a dataplane.Component and reads the section Fabric of a State. It does not drop packets itself.
package sources
