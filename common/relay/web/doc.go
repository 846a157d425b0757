// SPDX-License-Identifier: Apache-2.0

// Package web serves pages about the flows that a relay merges: denied flows, also while they happen, and nodes. The pages
// of common/page show who reaches whom, and explain flows by the answers of the nodes of both ends.
//
// Each page is a call of the relay with the token of the browser, so that the relay authenticates, decides and redacts as
// for its other clients. A browser sends the token as password of basic authentication. The pages need no script; with
// one, new flows appear by themselves.
//
// It decides nothing about access, and keeps no flows.
package web
