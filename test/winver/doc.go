// SPDX-License-Identifier: Apache-2.0

// Package winver reads the version of the Windows that a program runs on, for reports. It decides nothing by it.
package winver
