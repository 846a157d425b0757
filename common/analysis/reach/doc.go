// SPDX-License-Identifier: Apache-2.0

// Package reach computes for all flows at once which pods, nodes and addresses of a
// cluster reach each other, and the differences between two versions of a cluster.
//
// It divides pods, nodes and the addresses outside the cluster into groups, and ports
// into cells, until no policy can distinguish two members. All members of a group have
// the same verdicts. Selectors are evaluated on bit sets of groups. Rules are resolved
// once for every part of the groups that the rules of a pod distinguish. So the cost
// grows with the requested pairs of groups, and not with the policies times these
// pairs.
//
// The result is the meaning of the policies, without the limits of a node. The package
// shares no code with the compiler or the reference evaluator, and prints nothing.
package reach
