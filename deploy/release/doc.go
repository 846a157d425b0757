// SPDX-License-Identifier: Apache-2.0

// Command release writes the files of a release into a directory: archives of the commands,
// images as one OCI archive, the chart and manifests. Each has a bill of materials. Provenance,
// checksums and, with a key, signatures cover all of them.
//
// The same commit and version give the same bytes on every machine: it builds with the
// Go version that go.mod names, and all times are that of the commit.
//
// It publishes nothing, and makes no keys or tags.
package main
