// SPDX-License-Identifier: Apache-2.0

package cniframe

// Attachment identifies a pod's interface towards the runtime: CNI_CONTAINERID and CNI_IFNAME.
type Attachment struct {
	ContainerID string `json:"containerId"`
	IfName      string `json:"ifName"`
}

// AddRequest is the request of Add: attach a pod, and answer when its policy is in force. A repeated request
// for an existing attachment gets the same answer.
type AddRequest struct {
	Attachment Attachment `json:"attachment"`
	// Netns is the path of a network namespace, or the GUID of an HCN namespace.
	Netns        string `json:"netns"`
	PodNamespace string `json:"podNamespace"`
	PodName      string `json:"podName"`
	// PodUID may be empty.
	PodUID string `json:"podUid"`
	// Network is the name of the CNI network, which scopes GC; it may be empty.
	Network string `json:"network"`
	// HostPorts are ports of the node that are forwarded to the pod.
	HostPorts []HostPort `json:"hostPorts,omitempty"`
	// Bandwidth limits the pod's interface; nil means unlimited.
	Bandwidth *Bandwidth `json:"bandwidth,omitempty"`
	// DNS configures the pod's resolver; nil means that the runtime passed nothing.
	DNS *DNS `json:"dns,omitempty"`
	// Foreign describes the interface that an earlier plugin of the list made. An agent that makes interfaces
	// refuses it, and one that only enforces policy needs it.
	Foreign *Foreign `json:"foreign,omitempty"`
}

// MaxAddresses bounds the addresses of one IP version in a Foreign.
const MaxAddresses = 16

// Foreign is an interface of a pod that another CNI plugin made, as prevResult describes it.
type Foreign struct {
	// HostIfNames are the interfaces of prevResult without a sandbox. They are for messages only: the agent
	// finds the interface on the node itself.
	HostIfNames []string `json:"hostIfNames,omitempty"`
	// Others are further interfaces in the sandbox, except loopback. Policy does not see their packets.
	Others []string `json:"others,omitempty"`
	// MAC is that of the interface in the sandbox; empty if prevResult has none.
	MAC string `json:"mac,omitempty"`
	// Addresses are those of the interface, without prefix length. The first of each family is that of the pod in the API.
	Addresses []string `json:"addresses"`
}

// DNS is the configuration of a pod's resolver, with the meaning of resolv.conf. Servers are addresses.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
	Domain   string   `json:"domain,omitempty"`
}

// Bandwidth limits traffic to the pod (ingress) and from it (egress): rates in bits per second, bursts in
// bits. 0 means unlimited or unspecified. JSON holds the numbers as text, because many decoders read
// numbers as floats.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,string"`
	IngressBurst uint64 `json:"ingressBurst,string"`
	EgressRate   uint64 `json:"egressRate,string"`
	EgressBurst  uint64 `json:"egressBurst,string"`
}

// HostPort is a port of the node that is forwarded to the pod.
type HostPort struct {
	// HostIP is an address of the node. 0.0.0.0 and :: mean all of a family; empty means all of both.
	HostIP   string `json:"hostIp"`
	HostPort uint32 `json:"hostPort"`
	Port     uint32 `json:"port"`
	// Protocol is the number of the IP protocol.
	Protocol uint32 `json:"protocol"`
}

// AddResponse is the answer to Add.
type AddResponse struct {
	HostIfName string `json:"hostIfName"`
	HostMAC    string `json:"hostMac"`
	MAC        string `json:"mac"`
	MTU        int32  `json:"mtu"`
	// Addresses have a prefix length; there is at most one per family.
	Addresses []string `json:"addresses"`
	// Gateways are the next hops of the default routes, one per family of Addresses.
	Gateways []string `json:"gateways"`
}

// DelRequest is the request of Del: remove an attachment. A missing attachment is not an error. The answer
// is empty.
type DelRequest struct {
	Attachment Attachment `json:"attachment"`
}

// CheckRequest is the request of Check, which fails if the attachment is missing or differs from what Add
// created. The answer is empty.
type CheckRequest struct {
	Attachment Attachment `json:"attachment"`
	// Netns may be empty.
	Netns string `json:"netns"`
	// Addresses are those that Add returned, from prevResult; if there are none, Check does not compare them.
	Addresses []string `json:"addresses,omitempty"`
	// Bandwidth is what the runtime requested; if nil, Check does not compare it.
	Bandwidth *Bandwidth `json:"bandwidth,omitempty"`
	// Foreign describes the interface as for Add; nil if the agent made it.
	Foreign *Foreign `json:"foreign,omitempty"`
}

// GCRequest is the request of GC: remove every attachment that the request does not list.
type GCRequest struct {
	Valid []Attachment `json:"valid,omitempty"`
	// Network is the CNI network whose attachments Valid contains; attachments of other networks stay.
	// Empty means all networks.
	Network string `json:"network"`
}

// GCResponse is the answer to GC.
type GCResponse struct {
	// Removed are the attachments that were removed.
	Removed []Attachment `json:"removed,omitempty"`
}

// StatusRequest is the request of Status, which fails if Add cannot work now. The answer is empty.
type StatusRequest struct{}

// Error is the error object of the CNI specification, section 4.
type Error struct {
	Code    uint32 `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Msg }
