// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import (
	"errors"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// openHNS refuses: HNS is part of Windows.
func openHNS() (hns.Client, wire, error) {
	return nil, nil, errors.New("there is no HNS on this system: run it on a Windows node")
}

// release returns nothing: this is not Windows.
func release() string { return "" }
