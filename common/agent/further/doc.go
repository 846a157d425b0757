// SPDX-License-Identifier: Apache-2.0

// Package further decides which addresses a pod may use besides those in the API, where another CNI plugin gave it
// several of one family. The API's owner has an address: another pod, a node or a Service. An address that two pods
// have in their records is neither's. Other nodes do not know these addresses, so a pod may not use one to which they
// would not apply a Deny or Pass rule.
//
// The package reads snapshots and records. It does not report, and keeps nothing on disk: the agent does.
package further
