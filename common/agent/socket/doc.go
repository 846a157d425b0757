// SPDX-License-Identifier: Apache-2.0

// Package socket opens and dials the agent's local socket. It is a Unix socket that only root may use. On
// Windows it is a named pipe that only administrators and the system may use.
//
// It moves bytes and does not interpret them: common/api defines the protocols.
package socket
