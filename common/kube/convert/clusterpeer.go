// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"maps"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/isthmus-net/isthmus/common/model"
)

// maxCIDR is the longest text of a CIDR that the API accepts, in bytes.
const maxCIDR = 43

// domainName is the pattern of the CRD.
var domainName = regexp.MustCompile(`^(\*\.)?([a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$`)

// checkSet checks a list of 1 to maxNetworks texts without repetition.
func checkSet(list []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case len(list) == 0:
		errs = append(errs, field.Required(path, "must have at least one item"))
	case len(list) > maxNetworks:
		errs = append(errs, field.TooMany(path, len(list), maxNetworks))
	}
	seen := make(map[string]bool)
	for i, s := range list {
		if seen[s] {
			errs = append(errs, field.Duplicate(path.Index(i), s))
		}
		seen[s] = true
	}
	return errs
}

func convertNetworks(list []string, path *field.Path) ([]model.Peer, field.ErrorList) {
	errs := checkSet(list, path)
	var peers []model.Peer
	for i, text := range list {
		if len(text) > maxCIDR {
			errs = append(errs, field.TooLong(path.Index(i), text, maxCIDR))
			continue
		}
		p, more := strictCIDR(text, path.Index(i))
		errs = append(errs, more...)
		peers = append(peers, model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: p}})
	}
	return peers, errs
}

func checkDomainNames(list []string, path *field.Path) field.ErrorList {
	errs := checkSet(list, path)
	for i, name := range list {
		if !domainName.MatchString(name) {
			errs = append(errs, field.Invalid(path.Index(i), name, "must be a domain name such as example.com or *.example.com"))
		}
	}
	return errs
}

// portRange checks a range, whose end must be greater than its start.
func portRange(start, end int32, path *field.Path) (first, last uint16, errs field.ErrorList) {
	first, errs = portNumber(start, path.Child("start"))
	last, more := portNumber(end, path.Child("end"))
	if errs = append(errs, more...); len(errs) == 0 && start >= end {
		errs = append(errs, field.Invalid(path, start, "start must be less than end"))
	}
	return first, last, errs
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
