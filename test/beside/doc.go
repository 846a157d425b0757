// SPDX-License-Identifier: Apache-2.0

// Package beside tests Isthmus in mode policy beside networks of other projects: their real plugins and
// daemons, built from their modules, attach the pods of two nodes. Cases of test/corpus then run by packets, and
// each verdict is compared with the reference evaluator. sudo make test-beside runs it.
//
// It shows nothing of clouds, and nothing of Windows.
package beside
