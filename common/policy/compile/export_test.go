// SPDX-License-Identifier: Apache-2.0

package policy

// DigestPolicy is the digest by which the Compiler tells policies apart.
var DigestPolicy = digestPolicy
