// SPDX-License-Identifier: Apache-2.0

// Command winnode is an emulated Windows node: the real agent and the real Windows backend over HNS of
// test/hnsemu/host in this process, which moves packets between network namespaces. It runs in the node's
// namespace and ends with everything that it made. The socket of --control serves calls to Windows itself: it
// makes HCN namespaces as a container runtime does (/namespace?netns=FILE), whose GUIDs isthmus-cni for Linux
// then gets, and dumps the objects of HNS.
//
// It proves nothing about Windows beyond what the emulated HNS implements.
package main
