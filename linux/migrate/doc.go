// SPDX-License-Identifier: Apache-2.0

// Package migrate reads the pinned maps of an older map layout and copies its flows into
// ours, while both are in force. It converts structs by the names of their fields, and
// switches all interfaces from the older programs to ours at once.
//
// linux/loader says when. Until Retire, this package changes nothing of the older layout. It knows
// no policy: every flow that it copies is revalidated.
package migrate
