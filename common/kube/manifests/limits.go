// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
)

// Limits bounds the resources that a directory of manifests may use. Exceeding a limit is an error; nothing
// is truncated.
type Limits struct {
	// FileBytes and TotalBytes bound one file and all of them; FileBytes also bounds a document after
	// expansion of its YAML aliases.
	FileBytes, TotalBytes int64
	// StreamBytes, if it is not 0, is the size above which a file is read piece by piece: by documents, and by items of
	// lists. Then FileBytes bounds a piece, and TotalBytes does not count the file. A Directory must not stream: it
	// reads files twice and compares them.
	StreamBytes int64
	// Files bounds the number of files, Directories that of directories.
	Files, Directories int
	// Objects bounds the number of objects, those in lists included.
	Objects int
	// Pods bounds the number of pods after workloads are expanded.
	Pods int
	// Depth bounds the nesting of a document.
	Depth int
}

// DefaultLimits are far above the size of manifests that people write by hand.
func DefaultLimits() Limits {
	return Limits{
		FileBytes:   8 << 20,
		TotalBytes:  256 << 20,
		Files:       10_000,
		Directories: 10_000,
		Objects:     500_000,
		Pods:        200_000,
		Depth:       64,
	}
}

// Validate reports every limit that is not positive.
func (l Limits) Validate() error {
	var errs []error
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"FileBytes", l.FileBytes}, {"TotalBytes", l.TotalBytes}, {"Files", int64(l.Files)}, {"Directories", int64(l.Directories)},
		{"Objects", int64(l.Objects)}, {"Pods", int64(l.Pods)}, {"Depth", int64(l.Depth)},
	} {
		if n.value <= 0 {
			errs = append(errs, fmt.Errorf("limit %s: %d: must be greater than 0", n.name, n.value))
		}
	}
	return errors.Join(errs...)
}
