// SPDX-License-Identifier: Apache-2.0

// Package units runs the unit tests that the workflow windows.yaml runs on Windows under Wine here. The list of packages
// is the command of the workflow. Tests that fail because of Wine are listed with the reason; each must fail.
//
// It does not show what Windows does: Wine has system calls, files and clocks of its own.
package units
