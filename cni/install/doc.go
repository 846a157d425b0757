// SPDX-License-Identifier: Apache-2.0

// Package install installs the CNI plugin and its configuration in the container runtime's directories,
// keeps them there, and removes them. Each file is replaced by one rename, so that the runtime sees a whole
// file or none. The configuration appears when the agent is ready for the first time, and stays when the
// agent stops. A runtime without it would report the node as not ready and could not remove pods.
//
// A chained plugin is added to the configuration of another network instead, and removed from it again. Else this
// package does not touch files of other components; it reports those that take precedence.
package install
