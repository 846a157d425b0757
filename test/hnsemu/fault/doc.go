// SPDX-License-Identifier: Apache-2.0

// Package fault makes an emulated HNS go wrong as HNS has been seen to. Faults
// change what single calls do, by the names that the DLLs give them; Catalogue
// lists everything that is known to go wrong, how it is brought about, and what
// Isthmus does then. Client is an hns.Client over hnstest.Fake with faults, for tests
// in one process; package service has the same faults behind the DLLs.
//
// It does not judge what its victims do.
package fault
