// SPDX-License-Identifier: Apache-2.0

// Package testpods carries out the tests of common/connectivity in a Kubernetes cluster. It makes a namespace with pods,
// Services and NetworkPolicies, and runs isthmusctl probe in the pods. They conform to the Pod Security Standard restricted.
//
// It does not know which flows are tried, or why.
package testpods
