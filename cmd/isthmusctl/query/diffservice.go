// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
)

// diffService reports that pods reach other backends of a Service, because it leads somewhere else.
type diffService struct {
	Service string `json:"service"`
	Port    string `json:"port"`
	Was     string `json:"was"`
	Is      string `json:"is"`
	// Opens is set if clients reach more than before.
	Opens bool     `json:"opens"`
	From  []string `json:"from"`
	// BackendsWas and BackendsIs have the verdict for each backend.
	BackendsWas []diffBackend `json:"backends_was"`
	BackendsIs  []diffBackend `json:"backends_is"`
}

type diffBackend struct {
	Name    string `json:"name"`
	Port    int    `json:"port"`
	Verdict string `json:"verdict"`
}

// servicesOf returns the Services of both versions.
func servicesOf(v *versions, was, is *model.Snapshot) (before, after *service.Services) {
	slicesWas, slicesIs := v.was.EndpointSlices, v.is.EndpointSlices
	if v.endpoints != nil {
		slicesWas, slicesIs = v.endpoints, v.endpoints
	}
	return service.New(was, v.was.Services, slicesWas), service.New(is, v.is.Services, slicesIs)
}

// addTrafficPolicies names the Services whose internalTrafficPolicy differs. What that changes depends on the nodes of pods, which
// manifests may not have.
func (r *diffReport) addTrafficPolicies(v *versions, was *service.Services) {
	r.TrafficPolicies = []string{}
	for _, s := range v.is.Services {
		if old := was.Named(s.Namespace, s.Name); old != nil && old.OwnNode != s.OwnNode {
			r.TrafficPolicies = append(r.TrafficPolicies, fmt.Sprintf("Service %s/%s %s -> %s", s.Namespace, s.Name, trafficPolicy(old), trafficPolicy(s)))
		}
	}
	slices.Sort(r.TrafficPolicies)
}

// addLoneServices names the Services that only one version has.
func (r *diffReport) addLoneServices(v *versions, was, is *service.Services) {
	r.Services = []string{}
	for _, one := range []struct {
		all   []*model.Service
		other *service.Services
		what  string
	}{{v.was.Services, is, "removed"}, {v.is.Services, was, "added"}} {
		for _, s := range one.all {
			if one.other.Named(s.Namespace, s.Name) == nil {
				r.Services = append(r.Services, fmt.Sprintf("Service %s/%s %s", s.Namespace, s.Name, one.what))
			}
		}
	}
	slices.Sort(r.Services)
}

// trafficPolicy is the internalTrafficPolicy of a Service.
func trafficPolicy(s *model.Service) string {
	if s.OwnNode {
		return "Local"
	}
	return "Cluster"
}

// addServiceChanges adds what changes because a Service leads somewhere else.
func (r *diffReport) addServiceChanges(p *reach.Partition, was, is *service.Services, onlyOpened bool) {
	r.ServiceChanges = []diffService{}
	known := make(map[string]bool) // those of IPv4: the other family mostly says the same
	for _, c := range service.Changes(p, was, is) {
		s := c.Is.Route
		one := diffService{Service: s.Service.Namespace + "/" + s.Service.Name, Port: fmt.Sprintf("%s %d", s.Port.Protocol, s.Port.Port),
			Was: c.Was.Outcome.String(), Is: c.Is.Outcome.String(), Opens: c.Is.Outcome > c.Was.Outcome,
			BackendsWas: diffBackends(c.Was), BackendsIs: diffBackends(c.Is)}
		for _, g := range c.From {
			for _, m := range g.Pods {
				one.From = append(one.From, m.ID.String())
			}
		}
		slices.Sort(one.From)
		key := fmt.Sprint(one)
		switch {
		case known[key]:
		case onlyOpened && !one.Opens:
			r.Unlisted++
		default:
			r.ServiceChanges = append(r.ServiceChanges, one)
		}
		known[key] = true
	}
}

func diffBackends(s service.Side) []diffBackend {
	all := []diffBackend{}
	for i, t := range s.Route.Targets {
		all = append(all, diffBackend{t.Name, int(t.Port), verdictText(s.Allowed[i])})
	}
	return all
}

// texts lists backends with their verdicts.
func texts(backends []diffBackend) string {
	var all []string
	for _, b := range backends {
		all = append(all, fmt.Sprintf("%s %s at %d", b.Verdict, b.Name, b.Port))
	}
	return cli.OrNone(cli.Shorten(all, maxEnds))
}

func (s diffService) write(b *strings.Builder) {
	fmt.Fprintf(b, "Service %s leads elsewhere at %s:\n  %s -> %s\n    from  %s\n    was   %s\n    is    %s\n", s.Service, s.Port, s.Was, s.Is,
		cli.Shorten(s.From, maxEnds), texts(s.BackendsWas), texts(s.BackendsIs))
}

// writeServicesMarkdown writes the changes of Services as a table.
func (r *diffReport) writeServicesMarkdown(b *strings.Builder) {
	if len(r.ServiceChanges) == 0 {
		return
	}
	b.WriteString("\n**Services that lead elsewhere**\n\n| | Service | from | was | is |\n|---|---|---|---|---|\n")
	for _, s := range r.ServiceChanges {
		what := "closes"
		if s.Opens {
			what = "**opens**"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", what, cell(s.Service+" "+s.Port), cell(cli.Shorten(s.From, maxEnds)),
			cell(s.Was+": "+texts(s.BackendsWas)), cell(s.Is+": "+texts(s.BackendsIs)))
	}
}
