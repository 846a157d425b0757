// SPDX-License-Identifier: Apache-2.0

// Command mutants measures how strong the tests are. It plants one mistake at a
// time in a copy of the sources, runs the test that should notice it, and
// reports every mistake that no test notices. See docs/adr/0045-planted-mistakes.md.
//
// The *.txt files beside this one list the mistakes, a file per area:
//
//	== ID one sentence that says what is wrong
//	run [short] [root] PACKAGE REGEXP   a test that must fail; all of them must
//	equivalent REASON                   no test can fail: only compile it
//	ends panic|timeout                  how the test ends, if by no assertion
//	@@ FILE                             followed by lines as in a diff
//
// It never changes the checkout and does not judge the tests' speed.
package main
