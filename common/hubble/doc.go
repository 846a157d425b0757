// SPDX-License-Identifier: Apache-2.0

// Package hubble serves the flows of a node over Hubble's Observer interface, so that the hubble command and relays
// work unchanged. Hubble UI itself was not run: a test of common/relay replays its requests.
//
// The core is pure. A Mapper makes a flow.Flow of a flow event. A Filter selects flows. A Ring keeps the last
// flows; each client reads it at its own pace and learns how many flows it missed. Server does the I/O.
//
// It decides no verdict and reads no data path: its flows come from common/observe. It does not merge nodes:
// common/relay does.
package hubble
