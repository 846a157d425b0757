// SPDX-License-Identifier: Apache-2.0

// Package oracle compares the verdicts of policy engines of other projects with
// those of Isthmus. It uses published cases, and random clusters rendered as the
// objects that an API server would hold.
//
// A disagreement is a failure unless a known deviation of the engine explains
// it. Deviations are listed in docs/oracles.md with the text of the API that
// decides. Most are checked by restating the case: a case with the same meaning that
// avoids the deviation must give the verdict of Isthmus.
//
// The package is a module of its own, so that the engines' dependencies stay
// out of the product. It does not test enforcement: the corpus does.
package oracle
