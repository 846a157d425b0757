// SPDX-License-Identifier: Apache-2.0

// Package socket opens and dials the agent's local socket: a Unix socket that
// only root may use, on Windows a named pipe that only administrators and the
// system may use.
//
// It moves bytes; common/cniapi and common/cnicall say which.
package socket
