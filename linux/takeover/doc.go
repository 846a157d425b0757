// SPDX-License-Identifier: Apache-2.0

// Package takeover plans how a node whose pods hang on the bridge of another CNI plugin comes to mode full
// without restarting pods. Inspect reads the node, Make turns that into a Plan: steps in the order in which
// no packet is lost and no packet passes without policy, or the reasons against it. A Plan is a value
// without functions, so that it can be shown and stored.
//
// It does not decide policy, and changes nothing.
package takeover
