// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/isthmus-net/isthmus/common/model"
)

// Strictness distinguishes newly written objects from stored objects. An API server may have accepted the
// latter years ago under laxer rules.
type Strictness bool

const (
	// Written means the rules that API server 1.36 applies on create.
	Written Strictness = true
	// Stored means the rules that it applies to existing objects.
	Stored Strictness = false
)

// selector converts a label selector; nil is the empty one. With errors the result must not be used.
func selector(ls *metav1.LabelSelector, s Strictness, path *field.Path) (model.Selector, field.ErrorList) {
	if ls == nil {
		return model.Selector{}, nil
	}
	errs := metavalidation.ValidateLabelSelector(ls, metavalidation.LabelSelectorValidationOptions{
		AllowInvalidLabelValueInSelector: s == Stored,
	}, path)
	if len(errs) > 0 {
		return model.Selector{}, errs
	}
	var rs []model.Requirement
	for k, v := range ls.MatchLabels {
		rs = append(rs, model.Requirement{Key: k, Operator: model.In, Values: []string{v}})
	}
	for _, e := range ls.MatchExpressions {
		r := model.Requirement{Key: e.Key, Values: slices.Clone(e.Values)}
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			r.Operator = model.In
		case metav1.LabelSelectorOpNotIn:
			r.Operator = model.NotIn
		case metav1.LabelSelectorOpExists:
			r.Operator = model.Exists
		case metav1.LabelSelectorOpDoesNotExist:
			r.Operator = model.DoesNotExist
		}
		rs = append(rs, r)
	}
	return model.MakeSelector(rs...), nil
}

// wider converts the valid part of a label selector. It selects at least what the selector selects, as
// requirements are conjunctive.
func wider(ls *metav1.LabelSelector, s Strictness) model.Selector {
	if ls == nil {
		return model.Selector{}
	}
	kept := &metav1.LabelSelector{MatchLabels: make(map[string]string)}
	for k, v := range ls.MatchLabels {
		if _, errs := selector(&metav1.LabelSelector{MatchLabels: map[string]string{k: v}}, s, nil); len(errs) == 0 {
			kept.MatchLabels[k] = v
		}
	}
	for _, e := range ls.MatchExpressions {
		if _, errs := selector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}, s, nil); len(errs) == 0 {
			kept.MatchExpressions = append(kept.MatchExpressions, e)
		}
	}
	all, _ := selector(kept, s, nil)
	return all
}

// cidr parses a range of addresses as NetworkPolicy does. Stored objects may have leading zeros, bits
// beyond the prefix length and IPv4-mapped addresses; these keep their meaning.
func cidr(text string, s Strictness, path *field.Path) (netip.Prefix, field.ErrorList) {
	if errs := validation.IsValidCIDRForLegacyField(path, text, s == Written, nil); len(errs) > 0 {
		return netip.Prefix{}, errs
	}
	_, ipNet, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, field.ErrorList{field.Invalid(path, text, err.Error())}
	}
	addr, _ := netip.AddrFromSlice(ipNet.IP)
	bits, size := ipNet.Mask.Size()
	if addr.Is4In6() && size == 128 && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits).Masked(), nil
}

// strictCIDR parses a range of addresses as the isCIDR function of the API's validation rules does: it
// ignores bits beyond the prefix length.
func strictCIDR(text string, path *field.Path) (netip.Prefix, field.ErrorList) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() || p.Addr().Zone() != "" {
		return netip.Prefix{}, field.ErrorList{field.Invalid(path, text, "must be a CIDR such as 10.9.8.0/24 or 2001:db8::/64")}
	}
	return p.Masked(), nil
}

// parseAddr parses an IP address of a status or of the command line of a node.
func parseAddr(text string, path *field.Path) (netip.Addr, field.ErrorList) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return a.Unmap(), nil
	}
	// Leading zeros were accepted once and are read as decimal.
	if ip := netutils.ParseIPSloppy(text); ip != nil {
		if a, ok := netip.AddrFromSlice(ip); ok {
			return a.Unmap(), nil
		}
	}
	return netip.Addr{}, field.ErrorList{field.Invalid(path, text, "must be an IP address such as 10.9.8.7 or 2001:db8::7")}
}

// portNumber checks a port number.
func portNumber(n int32, path *field.Path) (uint16, field.ErrorList) {
	if n < 1 || n > 65535 {
		return 0, field.ErrorList{field.Invalid(path, n, "must be between 1 and 65535, inclusive")}
	}
	return uint16(n), nil
}

// portName checks the name of a container port.
func portName(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsValidPortName(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

func validateLabels(labels map[string]string, path *field.Path) field.ErrorList {
	return metavalidation.ValidateLabels(labels, path)
}

// nodeSelector converts the nodeSelector of a pod.
func nodeSelector(labels map[string]string, path *field.Path) (model.Selector, field.ErrorList) {
	if errs := validateLabels(labels, path); len(errs) > 0 {
		return model.Selector{}, errs
	}
	s, _ := selector(&metav1.LabelSelector{MatchLabels: labels}, Stored, path)
	return s, nil
}

// requiredAffinity converts the node labels that a pod requires by affinity: one of the selectors must
// match. It ignores terms that compare numbers or fields. A pod may therefore be expected on more nodes
// than will have it.
func requiredAffinity(a *corev1.Affinity, path *field.Path) ([]model.Selector, field.ErrorList) {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	var terms []model.Selector
	var errs field.ErrorList
	for i, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0 {
			continue // "A null or empty node selector term matches no objects."
		}
		ls := &metav1.LabelSelector{}
		for _, e := range t.MatchExpressions {
			if e.Operator == corev1.NodeSelectorOpGt || e.Operator == corev1.NodeSelectorOpLt {
				continue
			}
			ls.MatchExpressions = append(ls.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values})
		}
		s, more := selector(ls, Stored, path.Index(i))
		errs = append(errs, more...)
		terms = append(terms, s)
	}
	return terms, errs
}
