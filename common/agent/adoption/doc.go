// SPDX-License-Identifier: Apache-2.0

// Package adoption decides which interface belongs to which pod where another CNI plugin makes the interfaces
// and no ADD named the pod: it ran before the agent, or the list of plugins lacks isthmus-cni.
//
// A claim is a pod of this node with its addresses in the API. Compare matches claims with the interfaces that
// have these addresses. An interface that appeared after a claim is not proof for it: the address may belong to
// the next pod already. Such an interface is closed until a newer claim arrives.
//
// Where Isthmus makes all interfaces, CheckAttached finds the claims that another plugin satisfied.
//
// The package calls no data path and keeps nothing on disk: the agent does.
package adoption
