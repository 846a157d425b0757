// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/model"
)

// readDNS reads the configuration of the pod's resolver. What the runtime passes replaces the whole value of
// the file: it follows from the dnsPolicy of the pod.
func (c *Conf) readDNS(capabilities map[string]json.RawMessage) error {
	var passed struct {
		Servers  []string `json:"servers"`
		Searches []string `json:"searches"`
		Options  []string `json:"options"`
	}
	if err := read(capabilities, "dns", &passed, "use an object with servers, searches and options"); err != nil {
		return err
	}
	if len(passed.Servers)+len(passed.Searches)+len(passed.Options) > 0 {
		c.DNS = types.DNS{Nameservers: passed.Servers, Search: passed.Searches, Options: passed.Options}
	}
	d, err := model.ParseDNS(c.DNS.Nameservers, c.DNS.Search, c.DNS.Options, c.DNS.Domain)
	var bad *model.DNSError
	switch {
	case errors.As(err, &bad):
		c.invalid = wrong("dns", []byte(bad.Text()), bad.Remedy)
	case !d.IsZero():
		c.dns = &cniframe.DNS{Servers: d.ServerTexts(), Searches: d.Searches, Options: d.Options, Domain: d.Domain}
	}
	return nil
}
