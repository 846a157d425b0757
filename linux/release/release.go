// SPDX-License-Identifier: Apache-2.0

// Package release says on which Linux kernels Isthmus runs.
package release

import "fmt"

// Version is the version of a kernel, as in 6.12.
type Version struct{ Major, Minor int }

// Least is the oldest kernel that the data path is tested on. Older ones are refused.
var Least = Version{6, 1}

// Parse reads the version at the beginning of what uname -r prints, as in 6.1.0-35-amd64.
func Parse(release string) (v Version, err error) {
	if _, err := fmt.Sscanf(release, "%d.%d", &v.Major, &v.Minor); err != nil {
		return Version{}, fmt.Errorf("kernel release %q: want a version such as %s", release, Least)
	}
	return v, nil
}

// Supported reports whether the kernel is not older than Least.
func (v Version) Supported() bool {
	return v.Major > Least.Major || v.Major == Least.Major && v.Minor >= Least.Minor
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Check returns an error for a kernel that is not supported, by its release. A release that cannot be parsed is not an
// error, because the kernel's verifier has the last word.
func Check(release string) error {
	if v, err := Parse(release); err == nil && !v.Supported() {
		return fmt.Errorf("kernel %s is older than %s, the oldest that Isthmus runs on: boot a newer kernel on this node", release, Least)
	}
	return nil
}
