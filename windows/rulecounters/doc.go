// SPDX-License-Identifier: Apache-2.0

// Package rulecounters counts packets by rule of policy, from the counters that VFP has for each ACL. A Sampler runs
// vfpctrl.exe of Windows in the background and adds what was counted since the last time.
//
// VFP names the ACL. The Sampler decides which rules of policy an ACL stands for, from the State and the lists that
// the agent has written. Packets of an ACL that stands for several rules belong to none. Nor do those of an
// interval in which the list changed. So numbers are lower bounds, and never those of another rule.
//
// The output of vfpctrl is not documented. If it is not as expected there are no numbers, and Why has the reason.
//
// It counts no flows, and nothing from before the agent started.
package rulecounters
