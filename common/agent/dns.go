// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// resolver validates the configuration of a resolver in a request; nil means none.
func resolver(d *cniframe.DNS) (model.DNS, error) {
	if d == nil {
		return model.DNS{}, nil
	}
	all, err := model.ParseDNS(d.Servers, d.Searches, d.Options, d.Domain)
	var bad *model.DNSError
	if errors.As(err, &bad) {
		return model.DNS{}, refuse(CodeRefused, bad.Remedy, "dns: %s is not valid", shorten(bad.Text()))
	}
	return all, nil
}

// dnsOf returns the configuration that the endpoint of an ADD gets.
func (l *loop) dnsOf(a *addition) model.DNS {
	if !l.features.DNS {
		return model.DNS{}
	}
	usable, _ := a.dns.Usable()
	return usable
}

// resolverProblems lists the pods whose resolver is not as requested, and counts those for which none was
// requested. It follows from the records alone, so a restart of the agent does not lose it.
func (l *loop) resolverProblems() (all []string) {
	if !l.features.DNS {
		return nil
	}
	var without []*entry
	pods := 0
	for _, e := range l.sorted() {
		if e.State == endpoint.Released {
			continue
		}
		pods++
		d, dropped := e.DNS.Usable()
		if dropped != "" {
			all = append(all, fmt.Sprintf("warning: pod %s: %s", e.Pod(), dropped))
		}
		if len(d.Servers) == 0 {
			without = append(without, e)
		}
	}
	if n := len(without); n > 0 {
		all = append(all, fmt.Sprintf("warning: %d of %d pods get the host's resolver, such as %s: the runtime passed no DNS servers: "+
			"list the capability dns in the CNI configuration, and restart the pods", n, pods, without[0].Pod()))
	}
	return all
}
