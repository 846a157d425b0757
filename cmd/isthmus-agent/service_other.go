// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import "context"

// serveAs runs the agent as a program; only Windows has services.
func (e env) serveAs(ctx context.Context, o *options) error { return e.serve(ctx, o) }
