// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"errors"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/isthmus-net/isthmus/cni"
	"github.com/isthmus-net/isthmus/common/agent/socket"
)

func TestParseConf(t *testing.T) {
	c, err := cni.ParseConf([]byte(`{"cniVersion":"1.0.0","name":"pods","type":"isthmus","whatever":1}`))
	if err != nil || c.Socket != socket.Default || c.Timeout != cni.DefaultTimeout || c.Valid != nil || c.PrevResult != nil {
		t.Errorf("defaults: %+v, %v", c, err)
	}
	path, quoted := "/run/x.sock", `"/run/x.sock"`
	if runtime.GOOS == "windows" { // a path is not valid there
		path, quoted = `\\.\pipe\y`, `"\\\\.\\pipe\\y"`
	}
	c, err = cni.ParseConf([]byte(`{"cniVersion":"1.1.0","name":"pods","socket":` + quoted + `,"timeoutSeconds":1.5,
		"dns":{"nameservers":["192.0.2.1"]},"runtimeConfig":{"dns":{"servers":["192.0.2.2"],"searches":["s"],"options":["o"]}},
		"cni.dev/attachments":[{"containerID":"a","ifname":"eth0"}],
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.0.0.2/32","interface":0}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := types.DNS{Nameservers: []string{"192.0.2.2"}, Search: []string{"s"}, Options: []string{"o"}}
	if c.Socket != path || c.Timeout != 1500*time.Millisecond || !reflect.DeepEqual(c.DNS, want) || len(c.Valid) != 1 || c.PrevResult == nil {
		t.Errorf("got %+v", c)
	}
	c, err = cni.ParseConf([]byte(`{"name":"pods","socket":"\\\\.\\pipe\\x","cni.dev/valid-attachments":null}`))
	if err != nil || c.Socket != `\\.\pipe\x` || c.Valid == nil || len(c.Valid) != 0 {
		t.Errorf("got %+v, %v", c, err)
	}
}

// FuzzParseConf expects a configuration or a CNI error for any bytes.
func FuzzParseConf(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `[]`, `{"name":1}`, `{"socket":"/a","timeoutSeconds":1e-9}`, `{"timeoutSeconds":1e400}`,
		`{"runtimeConfig":{"portMappings":[{}],"bandwidth":{"ingressRate":0},"dns":{"servers":[""]}}}`,
		`{"cniVersion":"1.1.0","prevResult":{"ips":[{"address":"1.2.3.4/33"}]}}`, `{"cniVersion":"0.3.1","prevResult":{"ips":[{"version":"4","address":"1.2.3.4/3"}]}}`,
		`{"cni.dev/valid-attachments":[{"containerID":null}]}`, `{"ipam":{"type":"x"},"mtu":[],"dns":{"options":null}}`, `{"prevResult":null}`,
		`{"mode":"policy","cniVersion":"1.0.0","prevResult":{"cniVersion":"0.4.0","interfaces":[{}],"ips":[{"interface":7,"address":"::1/0"}]},"ipam":{}}`, `{"mode":3}`,
		`{"dns":{"nameservers":["10.0.0.1",""],"domain":"a"}}`, `{"runtimeConfig":{"dns":{"servers":["10.96.0.10"],"searches":["a."],"options":["ndots:5"]}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := cni.ParseConf(b)
		if err == nil {
			if c.Socket == "" || c.Timeout <= 0 || c.Timeout > 10*time.Minute {
				t.Errorf("accepted %+v", c)
			}
			return
		}
		var e *types.Error
		if !errors.As(err, &e) || e.Code != 6 && e.Code != 7 || e.Msg == "" {
			t.Errorf("error is %#v", err)
		}
	})
}
