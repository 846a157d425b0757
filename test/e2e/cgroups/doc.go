// SPDX-License-Identifier: Apache-2.0

// Package cgroups makes and removes the cgroups of nodes that share a machine, with cgroup version 1 or 2.
package cgroups
