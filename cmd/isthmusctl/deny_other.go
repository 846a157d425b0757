// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "errors"

// pinnedDenials finds no maps: they are Linux's.
func pinnedDenials(string) (denials, error) {
	return nil, usageError{errors.New("this system has no maps to look at: give --manifests DIR or --kubeconfig FILE")}
}
