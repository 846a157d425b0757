// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// resolver returns the configuration of a resolver as HNS stores it. The search domain "." of resolv.conf
// means none.
func resolver(d model.DNS) hns.DNS {
	r := hns.DNS{Domain: d.Domain, ServerList: d.ServerTexts(), Options: slices.Clone(d.Options)}
	for _, s := range d.Searches {
		if s = strings.TrimSuffix(s, "."); s != "" {
			r.Search = append(r.Search, s)
		}
	}
	return r
}

// sameResolver reports whether an endpoint has the wanted resolver. Without a wanted one, everything is
// right: HNS may show the host's. Domain and options are compared only where HNS shows them, as releases
// may ignore them.
func sameResolver(have, want hns.DNS) bool {
	if want.IsZero() {
		return true
	}
	servers := slices.EqualFunc(have.ServerList, want.ServerList, func(a, b string) bool {
		x, errX := netip.ParseAddr(a)
		y, errY := netip.ParseAddr(b)
		return errX == nil && errY == nil && x == y
	})
	return servers && slices.EqualFunc(have.Search, want.Search, sameDomain) &&
		(have.Domain == "" || sameDomain(have.Domain, want.Domain)) &&
		(len(have.Options) == 0 || slices.Equal(have.Options, want.Options))
}

func sameDomain(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

// compareResolvers records which attached endpoints have another resolver than their pods requested. HNS
// cannot change it, and a new endpoint would interrupt the running pod, so it stays and is reported.
func (b *Backend) compareResolvers(list []hns.Endpoint) {
	b.misresolved = nil
	for i := range list {
		e := &list[i]
		id, ours := b.owner(e.Name)
		if !ours {
			continue
		}
		spec, known := b.specs[id]
		if want := resolver(spec.DNS); known && !sameResolver(e.DNS, want) {
			b.misresolved = append(b.misresolved, fmt.Sprintf("endpoint %q has DNS servers %v and search domains %v in hns, not %v and %v; hns cannot change them: restart the pod",
				e.Name, e.DNS.ServerList, e.DNS.Search, want.ServerList, want.Search))
		}
	}
}
