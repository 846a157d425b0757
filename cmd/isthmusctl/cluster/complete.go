// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/common/model"
)

// CompleteEnds completes a flag with pods, nodes and, if a Service may be an end, with Services of the cluster that the
// other flags name.
func (s *Source) CompleteEnds(c *cobra.Command, flag string, services bool) {
	s.complete(c, flag, services, func(o *model.Snapshot) (all []string) {
		for id := range o.Pods.All() {
			all = append(all, id.String())
		}
		for name := range o.Nodes.All() {
			all = append(all, "node:"+name)
		}
		if services {
			all = append(all, s.serviceNames()...)
		}
		return all
	})
}

// CompleteServices completes a flag with the Services of the cluster.
func (s *Source) CompleteServices(c *cobra.Command, flag string) {
	s.complete(c, flag, true, func(*model.Snapshot) []string { return s.serviceNames() })
}

func (s *Source) serviceNames() (all []string) {
	for _, v := range s.Services {
		all = append(all, "svc/"+v.Namespace+"/"+v.Name)
	}
	return all
}

// CompleteNamespaces completes a flag with the namespaces of the cluster.
func (s *Source) CompleteNamespaces(c *cobra.Command, flag string) {
	s.complete(c, flag, false, func(o *model.Snapshot) (all []string) {
		for name := range o.Namespaces.All() {
			all = append(all, name)
		}
		return all
	})
}

// complete registers values that are read from the cluster. A cluster that cannot be read has
// none: a shell shows no errors.
func (s *Source) complete(c *cobra.Command, flag string, services bool, list func(*model.Snapshot) []string) {
	err := c.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		s.WantServices = services
		if s.Check() != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		snapshot, _, err := s.Load(c.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := list(snapshot)
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag does not exist, or is completed already
	}
}
