// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	npa1 "sigs.k8s.io/kube-network-policies/plugins/npa-v1alpha1"
	npa2 "sigs.k8s.io/kube-network-policies/plugins/npa-v1alpha2"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	npainformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"

	"github.com/isthmus-net/isthmus/common/model"
)

// kubeNetworkPolicies is kubernetes-sigs/kube-network-policies: its engine for NetworkPolicy, with
// the plugins for both versions of the cluster-wide APIs.
type kubeNetworkPolicies struct{}

// KubeNetworkPolicies returns the oracle.
func KubeNetworkPolicies() Oracle { return kubeNetworkPolicies{} }

// Name implements Oracle.
func (kubeNetworkPolicies) Name() string { return "kube-network-policies" }

// Models implements Oracle.
func (kubeNetworkPolicies) Models(*Case, model.Flow) bool { return true }

// Close implements Oracle.
func (kubeNetworkPolicies) Close() error { return nil }

// Deviations implements Oracle.
func (kubeNetworkPolicies) Deviations() []Deviation {
	return []Deviation{selfTraffic, ownNode, unknownAddress, isolatedPerDirection, emptyPeers, adminNamedPorts, adminNodes, sidecarPorts, namesAreZero}
}

// Ask implements Oracle. The engine reads from informers; this package fills their stores without a
// client.
func (k kubeNetworkPolicies) Ask(c *Case, flows []model.Flow) ([]Answer, error) {
	e, err := k.engine(c)
	if err != nil {
		return nil, err
	}
	out := make([]Answer, len(flows))
	for i, f := range flows {
		p := &network.Packet{SrcIP: f.Src.AsSlice(), DstIP: f.Dst.AsSlice(), Proto: corev1.Protocol(f.Protocol.String()),
			SrcPort: 40000, DstPort: int(f.Port), Family: corev1.IPv4Protocol}
		if f.Src.Is6() {
			p.Family = corev1.IPv6Protocol
		}
		allowed, err := e.EvaluatePacket(context.Background(), p)
		switch {
		case err != nil:
			out[i] = Failed
		case allowed:
			out[i] = Allowed
		}
	}
	return out, nil
}

func (kubeNetworkPolicies) engine(c *Case) (*networkpolicy.PolicyEngine, error) {
	core := informers.NewSharedInformerFactory(nil, 0)
	npa := npainformers.NewSharedInformerFactory(nil, 0)
	pods, nodes := core.Core().V1().Pods(), core.Core().V1().Nodes()
	namespaces, policies := core.Core().V1().Namespaces(), core.Networking().V1().NetworkPolicies()
	cnps := npa.Policy().V1alpha2().ClusterNetworkPolicies()
	anps, banps := npa.Policy().V1alpha1().AdminNetworkPolicies(), npa.Policy().V1alpha1().BaselineAdminNetworkPolicies()
	var labelled []*corev1.Namespace
	for _, ns := range c.Namespaces {
		labelled = append(labelled, ns)
	}
	for _, err := range []error{
		fill(namespaces.Informer(), labelled), fill(pods.Informer(), c.Pods), fill(nodes.Informer(), c.Nodes),
		fill(policies.Informer(), c.NetworkPolicies), fill(cnps.Informer(), c.ClusterPolicies),
		fill(anps.Informer(), c.AdminPolicies), fill(banps.Informer(), c.BaselinePolicies),
	} {
		if err != nil {
			return nil, err
		}
	}
	return networkpolicy.NewPolicyEngine(newPodInfos(c), []api.PolicyEvaluator{
		npa1.NewAdminNetworkPolicy(anps, nil),
		npa2.NewClusterNetworkPolicy(v1alpha2.AdminTier, cnps, nil, nodes.Lister()),
		networkpolicy.NewStandardNetworkPolicy("", namespaces, pods, policies),
		npa2.NewClusterNetworkPolicy(v1alpha2.BaselineTier, cnps, nil, nodes.Lister()),
		npa1.NewBaselineAdminNetworkPolicy(banps),
	}), nil
}

func fill[T any](i cache.SharedIndexInformer, objects []*T) error {
	for _, o := range objects {
		if err := i.GetIndexer().Add(o); err != nil {
			return err
		}
	}
	return nil
}

// podInfos maps addresses to pods for the engine.
type podInfos map[string]*api.PodInfo

func newPodInfos(c *Case) podInfos {
	all := make(podInfos)
	nodes := make(map[string]map[string]string)
	for _, n := range c.Nodes {
		nodes[n.Name] = n.Labels
	}
	current := make(map[string]*corev1.Pod)
	for _, p := range c.Pods {
		current[p.Namespace+"/"+p.Name] = p
	}
	for a, p := range c.owners {
		p = current[p.Namespace+"/"+p.Name] // the pod of the restated case
		all[a.String()] = api.NewPodInfo(p, c.Namespaces[p.Namespace].Labels, nodes[p.Spec.NodeName], "")
	}
	return all
}

// GetPodInfoByIP implements api.PodInfoProvider.
func (p podInfos) GetPodInfoByIP(address string) (*api.PodInfo, bool) {
	info, ok := p[address]
	return info, ok
}
