// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import "errors"

// openHost refuses: HNS is part of Windows.
func openHost() (host, error) {
	return nil, errors.New("there is no HNS on this system: run it on Windows")
}
