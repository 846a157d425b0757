// SPDX-License-Identifier: Apache-2.0

// Package clock reads jiffies, the clock that the BPF programs use to record when they last
// saw a flow, and measures its rate.
//
// It knows no flow.
package clock
