// SPDX-License-Identifier: Apache-2.0

// Package traffic sends streams of numbered packets and keeps connections open
// between network namespaces, and counts what was lost on the way. Tests change
// something meanwhile, and expect that nothing was.
//
// It does not make namespaces, and does not know what is between them.
package traffic
