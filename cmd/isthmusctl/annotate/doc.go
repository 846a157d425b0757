// SPDX-License-Identifier: Apache-2.0

// Package annotate writes findings in the forms that continuous integration and editors
// read: SARIF 2.1.0, workflow commands of GitHub, and JUnit XML.
//
// It finds nothing and decides no exit status.
package annotate
