// SPDX-License-Identifier: Apache-2.0

// Package service is the Host Networking Service as its DLLs see it. It accepts
// the calls of computenetwork.dll (objects of schema 2, by handles) and of
// vmcompute.dll (schema 1, by method and path). It answers as HNS does, with
// result codes and error documents.
//
// Networks, endpoints and namespaces are those of hnstest.Fake, which also decides
// what is refused; load balancers, routes and policy lists, which Isthmus does
// not make, are kept here. Faults change what calls do.
//
// It moves no packets. It does what public clients of HNS expect: a difference to
// HNS itself would not show here.
package service
