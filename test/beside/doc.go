// SPDX-License-Identifier: Apache-2.0

// Package beside tests Isthmus in mode policy beside networks of other projects: their real plugins and
// daemons, built from their modules, attach the pods of two nodes. The flows of test/corpus are then opened, and
// each verdict is compared with the reference evaluator. sudo make test-beside runs it.
//
// For plugins of Windows, the second node is an emulated one (test/wine) that runs them and the executables of Isthmus
// under Wine.
//
// The daemons of clouds that assign addresses are replaced at their interfaces. It tests neither clouds nor Windows.
package beside
