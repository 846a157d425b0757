// SPDX-License-Identifier: Apache-2.0

// Package service is the Host Networking Service as its DLLs see it. It accepts
// the calls of computenetwork.dll (objects of schema 2, by handles) and of
// vmcompute.dll (schema 1, by method and path). It answers as HNS does, with
// result codes and error documents.
//
// Networks, endpoints and namespaces are those of hnstest.Fake, which also refuses
// invalid requests. This package stores load balancers, routes and policy lists,
// which Isthmus does not make. Faults change what calls do.
//
// It moves no packets. It behaves as public clients of HNS expect, which may
// differ from HNS itself.
package service
