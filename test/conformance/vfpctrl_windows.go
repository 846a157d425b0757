// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/isthmus-net/isthmus/windows/rulecounters"

func vfpControl() (rulecounters.Runner, error) { return rulecounters.System() }
