// SPDX-License-Identifier: Apache-2.0

// Package hns is the only door to the Windows Host Networking Service: the
// objects of HCN schema 2 that Isthmus uses, as small structs with the JSON
// that the service wants; the Client that reads and writes them; errors classed
// by code; Guard, which gives every call a deadline; and Fake, a service in
// memory that refuses what HNS refuses and can decide packets.
//
// Rules.Decide evaluates ACLs as HNS does. Where HNS is not documented there
// are several ways to read it; a Reading is one of them.
//
// It decides nothing: which objects there should be is the business of package
// windows, which ACLs that of windows/acl. It knows no State and no policy. It
// does not program load balancers.
package hns
