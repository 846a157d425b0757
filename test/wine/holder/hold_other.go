// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import "errors"

// hold is for Windows only.
func hold(string) error { return errors.ErrUnsupported }
