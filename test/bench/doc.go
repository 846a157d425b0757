// SPDX-License-Identifier: Apache-2.0

// Command bench measures the policy compiler, the planner and the layout of the
// maps over a large cluster: 100,000 pods, 2,000 policies, 250 local endpoints.
// It prints one JSON object per figure: name, value, unit and, where there is
// one, the goal.
//
// Before the changes and after them it proves that everything is right in every
// cell (package cells), and measures that.
//
// It touches no kernel and no network.
package main
