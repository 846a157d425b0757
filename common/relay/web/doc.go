// SPDX-License-Identifier: Apache-2.0

// Package web serves the pages of common/page about what a relay knows: denied flows, also while they happen, who reaches whom,
// explanations by the nodes of both ends, policies and nodes.
//
// Each page is a call of the relay with the token of the browser, so that the relay authenticates, decides and redacts as
// for its other clients. A browser sends the token as password of basic authentication.
//
// It decides nothing about access, and keeps no flows.
package web
