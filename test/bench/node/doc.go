// SPDX-License-Identifier: Apache-2.0

// Command node measures an agent that follows a large cluster through a real API
// server: 1,000 nodes, 10,000 pods and 1,000 policies. It prints one JSON object
// per figure: the time from start to policy in force, memory and idle CPU of the
// agent. For a written policy it measures the time until its snapshot exists, and
// until the last packet got the old verdict. Executions of
// isthmus-cni are measured in turn with those of the CNI project's bridge and
// host-local, which know no policy and give one address where isthmus gives two.
//
// The objects are written by clients as fast as the API server takes them. With
// -attach only the last is measured, and the same cluster comes from a directory
// of manifests.
//
// It does not measure the cost of packets.
package main
