// SPDX-License-Identifier: Apache-2.0

// Package service finds the backends of Services: the pods and ports to which nodes send the connections of
// clients. Policies apply to these, not to the Service.
//
// It balances nothing, and it knows nothing of session affinity and topology: every backend that traffic policies leave may get a
// connection.
package service
