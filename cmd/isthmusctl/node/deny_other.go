// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "errors"

// pinnedDenials always fails: only Linux has the maps.
func pinnedDenials(string) (denials, error) {
	return nil, usageError{errors.New("this system has no BPF maps: give --manifests DIR or --kubeconfig FILE")}
}
