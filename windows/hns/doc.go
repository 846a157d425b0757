// SPDX-License-Identifier: Apache-2.0

// Package hns is the only access to the Windows Host Networking Service. It holds the objects of HCN schema
// 2 that Isthmus uses, as small structs with the JSON of the service, and the Client that reads and writes
// them. Errors have a class by their code. Guard gives every call a deadline. Package hnstest has a service in
// memory for tests.
//
// Rules.Decide evaluates ACLs as HNS does. Where the behaviour of HNS is not documented, several
// interpretations are possible; a Reading is one of them.
//
// It makes no decisions: package windows decides which objects should exist, windows/acl which ACLs. It
// knows no State and no policy. It does not program load balancers.
package hns
