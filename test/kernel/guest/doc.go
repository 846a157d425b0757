// SPDX-License-Identifier: Apache-2.0

// Command guest is the init of the guests that test/kernel boots: it mounts
// what the tests need, loads modules, runs the suites and powers off.
package main
