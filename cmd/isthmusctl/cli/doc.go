// SPDX-License-Identifier: Apache-2.0

// Package cli holds what the commands of isthmusctl share: the environment of
// the program, exit statuses and forms of output. It also computes results in
// parallel and prints them in order.
//
// A package of commands offers func Commands(cli.Env) []*cobra.Command.
//
// It knows no policy, no cluster and no agent.
package cli
