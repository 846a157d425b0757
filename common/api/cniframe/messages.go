// SPDX-License-Identifier: Apache-2.0

package cnicall

// The messages of service CNI in common/cniapi/isthmus.proto, which documents the fields. A test compares
// both definitions.

// Attachment is the key of a pod's interface.
type Attachment struct {
	ContainerID string `json:"containerId"`
	IfName      string `json:"ifName"`
}

// AddRequest is the request of Add.
type AddRequest struct {
	Attachment   Attachment `json:"attachment"`
	Netns        string     `json:"netns"`
	PodNamespace string     `json:"podNamespace"`
	PodName      string     `json:"podName"`
	PodUID       string     `json:"podUid"`
	Network      string     `json:"network"`
	HostPorts    []HostPort `json:"hostPorts,omitempty"`
	Bandwidth    *Bandwidth `json:"bandwidth,omitempty"`
}

// Bandwidth holds rates in bits per second and bursts in bits. The JSON mapping of protobuf encodes 64-bit
// numbers as text.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,string"`
	IngressBurst uint64 `json:"ingressBurst,string"`
	EgressRate   uint64 `json:"egressRate,string"`
	EgressBurst  uint64 `json:"egressBurst,string"`
}

// HostPort is a port of the node that is forwarded to the pod.
type HostPort struct {
	HostIP   string `json:"hostIp"`
	HostPort uint32 `json:"hostPort"`
	Port     uint32 `json:"port"`
	Protocol uint32 `json:"protocol"`
}

// AddResponse is the answer to Add.
type AddResponse struct {
	HostIfName string   `json:"hostIfName"`
	HostMAC    string   `json:"hostMac"`
	MAC        string   `json:"mac"`
	MTU        int32    `json:"mtu"`
	Addresses  []string `json:"addresses"`
	Gateways   []string `json:"gateways"`
}

// DelRequest is the request of Del.
type DelRequest struct {
	Attachment Attachment `json:"attachment"`
}

// CheckRequest is the request of Check.
type CheckRequest struct {
	Attachment Attachment `json:"attachment"`
	Netns      string     `json:"netns"`
	Addresses  []string   `json:"addresses,omitempty"`
	Bandwidth  *Bandwidth `json:"bandwidth,omitempty"`
}

// GCRequest is the request of GC.
type GCRequest struct {
	Valid   []Attachment `json:"valid,omitempty"`
	Network string       `json:"network"`
}

// Error is a refusal of the agent, in the form of the CNI specification.
type Error struct {
	Code    uint32 `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Msg }
