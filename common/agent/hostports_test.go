// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

func TestHostPortRequests(t *testing.T) {
	port := func(ip string, host, pod, protocol uint32) cniframe.HostPort {
		return cniframe.HostPort{HostIP: ip, HostPort: host, Port: pod, Protocol: protocol}
	}
	for want, all := range map[string][]cniframe.HostPort{
		"":                                 {port("", 80, 8080, 6), port("192.0.2.1", 80, 8080, 17)},
		"host port 0 to port 80":           {port("", 0, 80, 6)},
		"host port 65536":                  {port("", 65536, 80, 6)},
		"to port 0":                        {port("", 80, 0, 6)},
		"of protocol 1 is not valid":       {port("", 80, 80, 1)},
		"of protocol 262 is not valid":     {port("", 80, 80, 262)},
		`host address "x"`:                 {port("x", 80, 80, 6)},
		"requests host port TCP 192.0.2.1": {port("", 80, 80, 6), port("192.0.2.1", 80, 81, 6)},
		"at most 1000 are allowed":         make([]cniframe.HostPort, 1001),
	} {
		got, err := hostPorts(&cniframe.AddRequest{HostPorts: all})
		switch {
		case want == "" && (err != nil || len(got) != len(all)):
			t.Errorf("%v: %v, %v", all, got, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("want an error about %q, got %v", want, err)
		}
	}
}
