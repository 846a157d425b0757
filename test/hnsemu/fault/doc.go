// SPDX-License-Identifier: Apache-2.0

// Package fault makes an emulated HNS fail as HNS has failed in reports. A Fault
// changes what matching calls do; calls have the names of the DLLs. Catalogue lists
// the known failures, their triggers, and the reaction of Isthmus. Client is an hns.Client over hnstest.Fake with faults, for tests
// in one process; package service has the same faults behind the DLLs.
//
// It does not check the reaction.
package fault
