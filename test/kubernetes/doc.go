// SPDX-License-Identifier: Apache-2.0

// Package kubernetes builds the programs of Kubernetes and etcd that tests run. They are built
// from their Go modules in a separate module, so that the product's go.mod does not require
// them. The programs stay in a cache outside the repository.
//
// It does not run them.
package kubernetes
