// SPDX-License-Identifier: Apache-2.0

// Package page tests the web pages in Chromium: by keyboard, without JavaScript, with axe, and about 10,000 pods. It runs
// isthmusctl ui, and pages.mjs with Playwright, which package-lock.json pins.
//
// It needs the network for npm, and runs with ISTHMUS_PAGE=1 only.
package page
