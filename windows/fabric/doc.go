// SPDX-License-Identifier: Apache-2.0

// Package fabric keeps the routes of an overlay network of HNS: to pods of other nodes, and to the
// addresses from which Linux nodes send to pods. Its ACL keeps pods from sending tunneled packets. It also
// reports what other nodes need to know of the tunnel endpoint, which HNS chooses.
//
// It is a dataplane.Component and reads the section Fabric of a State. It does not create the network, and
// does not program the host's own routes, which an L2Bridge network needs: package hostfabric does.
package fabric
