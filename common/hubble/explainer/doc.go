// SPDX-License-Identifier: Apache-2.0

// Package explainer answers relays about one node, beside Hubble's interface: the objects that policy depends on, the state of
// the node with the numbers of its rules, and what it decides about a flow. A decision is that of the policies, next to that of
// the data path as it was read back.
//
// It decides nothing about access: the listeners accept root, or relays by their certificate. It changes nothing.
package explainer
