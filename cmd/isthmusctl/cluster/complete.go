// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/common/model"
)

// CompletePods completes a flag with the pods of the cluster that the other flags name.
func (s *Source) CompletePods(c *cobra.Command, flag string) {
	s.complete(c, flag, func(o *model.Snapshot) (all []string) {
		for id := range o.Pods.All() {
			all = append(all, id.String())
		}
		return all
	})
}

// CompleteNamespaces completes a flag with the namespaces of the cluster.
func (s *Source) CompleteNamespaces(c *cobra.Command, flag string) {
	s.complete(c, flag, func(o *model.Snapshot) (all []string) {
		for name := range o.Namespaces.All() {
			all = append(all, name)
		}
		return all
	})
}

// complete registers values that are read from the cluster. A cluster that cannot be read has
// none: a shell shows no errors.
func (s *Source) complete(c *cobra.Command, flag string, list func(*model.Snapshot) []string) {
	err := c.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		s.WantServices = false
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
