// SPDX-License-Identifier: Apache-2.0

// Command images writes container images as OCI archives, without a daemon and
// without a base image: the commands of Isthmus for Linux and Windows, or any
// directory. The same files give the same bytes. What a runtime imports is
//
//	ctr --namespace k8s.io images import FILE
//
// It builds no programs and pushes nothing.
package main
