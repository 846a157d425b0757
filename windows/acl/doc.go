// SPDX-License-Identifier: Apache-2.0

// Package acl lowers a model.State to what HNS can hold: for every endpoint the
// full list of ACLs in both directions, and on HNS 13 and newer the sets of
// addresses that the lists refer to.
//
// The lists give the State's verdict for every address, protocol and port,
// under every hns.Reading; Check proves that for one list. Lists that are in
// force and still right are kept (Lowering.Keep), and NewPlan orders the writes
// from one Programme to the next so that every packet meets the old verdict or
// the new one. A Lowerer remembers what stays from one State to the next.
//
// It is pure: it talks to nobody, and package windows executes its plans. It
// decides no policy, and it keeps no causes: explaining is done on the State.
package acl
