// SPDX-License-Identifier: Apache-2.0

// Package kubernetes builds the programs of Kubernetes and etcd that tests run:
// from their Go modules, in a module of their own, so that the product's go.mod
// knows none of them. What is built stays in a cache outside the repository.
//
// It does not run them.
package kubernetes
