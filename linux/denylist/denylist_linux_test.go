// SPDX-License-Identifier: Apache-2.0

package denylist_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

// TestSwitchedOff: without devices every list is reported as not enforced, and no program is opened.
func TestSwitchedOff(t *testing.T) {
	d, err := denylist.New(denylist.Config{Pins: filepath.Join(t.TempDir(), "v2"), Open: func() (*xdp.Filter, error) {
		t.Error("the program is opened")
		return nil, nil
	}}, dataplane.Host{Log: slog.New(slog.DiscardHandler), Step: func(string) {}, Repaired: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	l := &model.DenyList{Name: "guests", Entries: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	s := &model.State{Deny: model.MakeDenySet(immutable.MakeMap(map[string]*model.DenyList{"guests": l}))}
	refused, err := d.Apply(context.Background(), s)
	if err != nil || len(refused) != 1 || refused[0].Policy != l.Origin() || !strings.Contains(refused[0].Reason, "XDP is switched off") {
		t.Errorf("reported %v, %v", refused, err)
	}
	if refused, err = d.Apply(context.Background(), &model.State{}); len(refused) > 0 || err != nil {
		t.Errorf("without lists: reported %v, %v", refused, err)
	}
	if modes := d.PathModes(); len(modes) != 1 || modes[0] != (dataplane.PathMode{Part: "uplinks", Mode: "off", Count: 1}) {
		t.Errorf("modes %v", modes)
	}
}

func TestParseDevices(t *testing.T) {
	for text, want := range map[string]string{"auto": "{true []}", "off": "{false []}", "eth0": "{false [eth0]}", "eth0,eth1": "{false [eth0 eth1]}"} {
		if d, err := denylist.ParseDevices(text); err != nil || fmt.Sprint(d) != want {
			t.Errorf("%q: %v %v, want %s", text, d, err, want)
		}
	}
	for _, text := range []string{"", ",", "eth0,", "eth0,eth0", "a/b", "..", "averyveryverylongname"} {
		if _, err := denylist.ParseDevices(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
