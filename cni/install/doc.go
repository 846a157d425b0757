// SPDX-License-Identifier: Apache-2.0

// Package install puts the CNI plugin and its configuration where the container
// runtime looks for them, keeps them there, and takes them away. Each file is
// replaced by one rename, so that the runtime sees a whole one or none. The
// configuration appears when the agent is ready for the first time, and stays
// when the agent stops: a runtime without it would report the node as not ready
// and could not remove pods.
//
// It touches no files of others; it reports those that stand in the way.
package install
