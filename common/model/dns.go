// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Bounds of the configuration of a resolver: those of the kubelet and of glibc.
const (
	MaxDNSServers  = 3
	MaxDNSSearches = 32
	// maxDNSValues bounds each list of a request.
	maxDNSValues = 128
	// maxDNSName is the length of the longest domain name, in bytes (RFC 1035).
	maxDNSName = 253
)

// DNS is the configuration of a pod's resolver. The zero value means that none was requested.
type DNS struct {
	Servers []netip.Addr `json:"servers,omitempty"`
	// Searches are the domains that the resolver appends to short names, in order.
	Searches []string `json:"searches,omitempty"`
	// Options are those of resolv.conf, such as "ndots:5".
	Options []string `json:"options,omitempty"`
	// Domain is the domain of the interface; usually empty.
	Domain string `json:"domain,omitempty"`
}

// DNSError reports values that a resolver cannot have.
type DNSError struct {
	// Values are the list that has the wrong value.
	Values []string
	// Remedy names the wrong value.
	Remedy string
}

// Error returns `["x"] is not valid: remedy`.
func (e *DNSError) Error() string { return e.Text() + " is not valid: " + e.Remedy }

// Text returns the values as a JSON list.
func (e *DNSError) Text() string {
	text, err := json.Marshal(e.Values)
	if err != nil {
		return fmt.Sprintf("%q", e.Values)
	}
	return string(text)
}

// ParseDNS parses the configuration of a resolver. The error is a *DNSError.
func ParseDNS(servers, searches, options []string, domain string) (DNS, error) {
	var d DNS
	for _, s := range servers {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return DNS{}, &DNSError{servers, fmt.Sprintf("DNS server %q: use the address of a server, without a zone", s)}
		}
		d.Servers = append(d.Servers, a.Unmap())
	}
	for _, s := range searches {
		if !isDomain(s) {
			return DNS{}, &DNSError{searches, fmt.Sprintf("search domain %q: use letters, digits, '-', '_' and '.', at most %d bytes", s, maxDNSName)}
		}
	}
	for _, o := range options {
		if o == "" || len(o) > maxDNSName || strings.ContainsFunc(o, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }) {
			return DNS{}, &DNSError{options, fmt.Sprintf("option %q: use printable characters without spaces and commas", o)}
		}
	}
	if domain != "" && !isDomain(domain) {
		return DNS{}, &DNSError{[]string{domain}, fmt.Sprintf("domain %q: use letters, digits, '-', '_' and '.', at most %d bytes", domain, maxDNSName)}
	}
	for _, list := range [][]string{servers, searches, options} {
		if len(list) > maxDNSValues {
			return DNS{}, &DNSError{list[:1], fmt.Sprintf("%d values: use at most %d", len(list), maxDNSValues)}
		}
	}
	d.Searches, d.Options, d.Domain = slices.Clone(searches), slices.Clone(options), domain
	return d, nil
}

// isDomain reports whether s is a domain name, with or without the final dot. It may contain underscores, as
// Kubernetes permits. A single dot is the root.
func isDomain(s string) bool {
	if s == "." {
		return true
	}
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > maxDNSName {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			return false
		}
	}
	return true
}

// IsZero reports whether nothing was requested.
func (d DNS) IsZero() bool {
	return len(d.Servers) == 0 && len(d.Searches) == 0 && len(d.Options) == 0 && d.Domain == ""
}

// Equal reports whether two configurations have the same values in the same order.
func (d DNS) Equal(o DNS) bool {
	return slices.Equal(d.Servers, o.Servers) && slices.Equal(d.Searches, o.Searches) && slices.Equal(d.Options, o.Options) && d.Domain == o.Domain
}

// Usable returns the configuration with the first servers and search domains only, as resolvers ignore
// the others. dropped lists those, or is empty.
func (d DNS) Usable() (usable DNS, dropped string) {
	var texts []string
	if n := len(d.Servers); n > MaxDNSServers {
		texts = append(texts, fmt.Sprintf("%d DNS servers requested, the first %d are used", n, MaxDNSServers))
		d.Servers = d.Servers[:MaxDNSServers:MaxDNSServers]
	}
	if n := len(d.Searches); n > MaxDNSSearches {
		texts = append(texts, fmt.Sprintf("%d search domains requested, the first %d are used", n, MaxDNSSearches))
		d.Searches = d.Searches[:MaxDNSSearches:MaxDNSSearches]
	}
	return d, strings.Join(texts, "; ")
}

// ServerTexts returns the addresses of the servers as text.
func (d DNS) ServerTexts() []string {
	var all []string
	for _, a := range d.Servers {
		all = append(all, a.String())
	}
	return all
}

// Validate reports the first wrong value.
func (d DNS) Validate() error {
	_, err := ParseDNS(d.ServerTexts(), d.Searches, d.Options, d.Domain)
	return err
}

// String returns "servers 10.96.0.10, search shop.svc.cluster.local svc.cluster.local".
func (d DNS) String() string {
	var texts []string
	for _, part := range []struct {
		name   string
		values []string
	}{{"servers", d.ServerTexts()}, {"search", d.Searches}, {"options", d.Options}, {"domain", []string{d.Domain}}} {
		if text := strings.Join(part.values, " "); text != "" {
			texts = append(texts, part.name+" "+text)
		}
	}
	return strings.Join(texts, ", ")
}
