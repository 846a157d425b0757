// SPDX-License-Identifier: Apache-2.0

// Package reach computes who reaches whom in a cluster, and what differs between
// two versions of a cluster, for all flows at once.
//
// It divides pods, nodes and the addresses outside into groups, and ports into
// cells, until no policy tells two members apart. What one member may do, all may.
// Selectors are evaluated on sets of groups, a bit for each. Rules are resolved
// once for every part of the groups that the rules of a pod tell apart. So the
// cost grows with the pairs of groups that the caller asks for, and not with the
// policies times these pairs.
//
// It says what policies mean, not what a node can hold, and shares no code with
// the compiler or the reference evaluator. It prints nothing.
package reach
