// SPDX-License-Identifier: Apache-2.0

// Package dirlock keeps a directory for one agent: by flock on the directory
// itself on Unix, by LockFileEx on a file in it on Windows. The kernel releases
// the lock when the process ends, however that happens.
//
// It does not say what is in the directory, and does not keep out processes that
// do not ask.
package dirlock
