// SPDX-License-Identifier: Apache-2.0

// Package windows is the Backend of Windows nodes: it attaches pods to an HNS network and keeps the ACLs of
// their endpoints equal to a State.
//
// HNS itself is the only store. The package reads attachments and policies from it every time, identifies
// endpoints by their names, and may repeat everything after a crash. It runs on any system against
// hnstest.Fake; only one file of package hns needs Windows.
//
// Its Backend is the policy core: network, endpoints and ACLs. Other features have packages of their own:
// components, which components.go lists, and hostport and bandwidth, whose policies belong to endpoints.
// Package flowevents explains drops, and rulecounters counts packets by rule.
//
// It programs no load balancers, and reports no allowed flows.
package windows
