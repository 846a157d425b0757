// SPDX-License-Identifier: Apache-2.0

// Package acl lowers a model.State to objects of HNS: for every endpoint the full list of ACLs in both
// directions, and on HNS 13 and newer the address sets that the lists refer to.
//
// The lists give the State's verdict for every address, protocol and port, under every hns.Reading; Check
// proves that for one list. Lists in force that are still right are kept (Lowering.Keep). NewPlan orders
// the writes from one Ruleset to the next so that every packet meets the old verdict or the new one. A
// Lowerer reuses results from one State to the next.
//
// It is pure: package windows executes its plans. It decides no policy and keeps no causes; isthmusctl
// explains verdicts from the State.
package acl
