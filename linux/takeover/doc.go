// SPDX-License-Identifier: Apache-2.0

// Package takeover moves the pods of a node from the bridge of another CNI plugin to mode full, without
// restarting them. Inspect reads the node. Make turns the result into a Plan, or into the reasons against
// one. The steps of a Plan are in an order that loses no packet and lets none pass without policy. A Plan
// is a value without functions, so that it can be shown and stored.
//
// A Progress does the steps, reverses them after a failure, and survives a restart. Only Host changes the node. The
// package does not decide policy.
package takeover
