// SPDX-License-Identifier: Apache-2.0

// Command node measures an agent that follows a large cluster through a real API
// server: 1,000 nodes, 10,000 pods and 1,000 policies. It prints one JSON object
// per figure: the time from start to policy in force, memory and idle CPU of the
// agent. For a written policy it measures the time until its snapshot exists, and
// until the last packet got the old verdict. Executions of isthmus-cni alternate with
// executions of the CNI project's bridge and host-local, which enforce no policy and
// assign one address instead of two.
//
// Clients write the objects as fast as the API server accepts them. With -attach the
// command measures the plugins only, and the agent reads the cluster from a directory
// of manifests.
//
// It does not measure the cost of packets.
package main
