// SPDX-License-Identifier: Apache-2.0

// Package dirlock reserves a directory for one agent. It uses flock on the directory itself on Unix, and
// LockFileEx on a file in it on Windows. The kernel releases the lock when the process ends for any reason.
//
// It does not define what the directory contains, and does not stop processes that do not take the lock.
package dirlock
