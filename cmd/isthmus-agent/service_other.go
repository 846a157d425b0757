// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import "context"

// serveAs runs the agent as what the flags say; only Windows has a choice.
func (e env) serveAs(ctx context.Context, o *options) error { return e.serve(ctx, o) }
