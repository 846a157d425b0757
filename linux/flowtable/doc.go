// SPDX-License-Identifier: Apache-2.0

// Package flowtable reads the flow table of the programs, the maps conns4 and conns6, and copies
// it into another one. The table consists of arrays whose entries programs reuse at any time.
// Its index and its hints follow from it.
//
// It changes no flow of a table that programs use.
package flowtable
