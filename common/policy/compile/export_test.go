// SPDX-License-Identifier: Apache-2.0

package compile

// DigestPolicy is the digest by which the Compiler identifies policies.
var DigestPolicy = digestPolicy

// SameState is the comparison by which a Compiler returns the previous State.
var SameState = sameState
