// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import "github.com/isthmus-net/isthmus/windows/rulecounters"

func vfpControl() (rulecounters.Runner, error) { return nil, nil }
