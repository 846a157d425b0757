// SPDX-License-Identifier: Apache-2.0

// Package review has the API server authenticate tokens and decide about rights: TokenReview and
// SubjectAccessReview.
//
// It keeps no answers and decides nothing itself.
package review
