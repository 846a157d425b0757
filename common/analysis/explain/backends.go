// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/model"
)

// ServiceReport is the explanation of a flow to a Service: one Report for each backend of each port. Its JSON
// form is an interface of isthmusctl.
type ServiceReport struct {
	From End `json:"from"`
	// Service is namespace/name.
	Service string `json:"service"`
	// Via is the node port that leads to the Service, as "node n1 TCP 30080", if the client calls that.
	Via string `json:"via,omitempty"`
	// Addresses are those of the Service; a headless one has none, and no manifest that leaves them to a cluster.
	Addresses []string `json:"addresses"`
	Headless  bool     `json:"headless,omitempty"`
	// Verdict is "allow" if policy allows every backend, else "deny".
	Verdict  string    `json:"verdict"`
	Denied   int       `json:"denied_backends"`
	Backends []Backend `json:"backends"`
	// Missing are the reasons why ports have no backends.
	Missing []string `json:"missing,omitempty"`
	// Notes list what the verdict does not cover.
	Notes []string `json:"notes,omitempty"`
}

// Backend is the explanation of a flow to one backend.
type Backend struct {
	// ServicePort is the port that the client calls, as "TCP 80 (http)".
	ServicePort string `json:"service_port"`
	*Report
}

// NewServiceReport returns the report about a Service without backends.
func NewServiceReport(s *model.Service) *ServiceReport {
	r := &ServiceReport{Service: s.Namespace + "/" + s.Name, Addresses: []string{}, Headless: s.Headless, Verdict: model.Allow.String(), Backends: []Backend{}}
	for _, a := range s.Addresses {
		r.Addresses = append(r.Addresses, a.String())
	}
	return r
}

// Add adds the report about a backend.
func (r *ServiceReport) Add(port model.ServicePort, x *Report) {
	text := fmt.Sprintf("%s %d", port.Protocol, port.Port)
	if port.Name != "" {
		text += " (" + port.Name + ")"
	}
	r.From = x.From
	r.Backends = append(r.Backends, Backend{text, x})
	if x.Verdict == model.Deny.String() {
		r.Verdict = x.Verdict
		r.Denied++
	}
}
