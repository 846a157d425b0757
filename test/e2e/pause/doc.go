// SPDX-License-Identifier: Apache-2.0

// Command pause holds the namespaces of a pod: it waits for a signal to end,
// and for processes that have lost their parent.
//
// It does nothing else.
package main
