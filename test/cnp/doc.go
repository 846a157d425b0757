// SPDX-License-Identifier: Apache-2.0

// Package cnp holds the conformance tests of ClusterNetworkPolicy, of the project network-policy-api, as a test that
// runs against the cluster of a kubeconfig file. Command e2e starts a cluster for it (make cnp-conformance). It is a
// module of its own, because these tests need libraries that the product does not.
//
// It adds no tests.
package cnp
