// SPDX-License-Identifier: Apache-2.0

// Command bench measures the policy compiler, the planner and the map layout over a large
// cluster: 100,000 pods, 2,000 policies, 250 local endpoints. It prints one JSON object per
// figure: name, value, unit and, if set, the goal.
//
// Before and after the changes it checks the results in every cell (package cells), and
// measures that check.
//
// It uses neither the kernel nor the network.
package main
