// SPDX-License-Identifier: Apache-2.0

// Package oracle compares the verdicts of policy engines of other projects with
// those of Isthmus. It uses published cases, and random clusters rendered as the
// objects that an API server would hold.
//
// A disagreement is a failure unless a known deviation of the engine explains
// it. Deviations are listed in docs/oracles.md with the text of the API that
// decides. Most are checked by asking again: the same meaning written so that
// the engine does not meet its deviation must give Isthmus's answer.
//
// The package is a module of its own, so that the engines' dependencies stay
// out of the product. It says nothing about enforcement: the corpus does.
package oracle
