// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/rulecounters"
)

// counting is a VFP with a pod, whose list is that of the endpoint in HNS. It counts by itself.
type counting struct {
	s       *simulated
	ip      netip.Addr
	each    func(n int) int // what it counts for n datagrams of a flow
	lost    bool
	member  string // where the Id of the ACL is
	broken  string // printed instead of the counters
	missing bool
	matched int
}

const vfpPort = "1666B12E-5204-46FB-A42E-1295AE2DF63A"

func (v *counting) send(to netip.AddrPort, n int) error {
	list, err := v.list()
	if err != nil {
		return err
	}
	for _, a := range list {
		if to.Addr() == v.ip && a.ID == counterRule && a.Protocols == "17" && a.LocalPorts == fmt.Sprint(to.Port()) && a.Action == hns.Allow && a.Direction == hns.In && !v.lost {
			v.matched += v.each(n)
		}
	}
	return nil
}

// list returns the ACLs of the endpoint with the address.
func (v *counting) list() ([]hns.ACL, error) {
	e, err := v.endpoint()
	if err != nil {
		return nil, err
	}
	return e.ACLs()
}

func (v *counting) endpoint() (hns.Endpoint, error) {
	all, err := v.s.fake.AllEndpoints(context.Background())
	for _, e := range all {
		if len(e.IPConfigurations) > 0 && e.IPConfigurations[0].IPAddress == v.ip.String() {
			return e, err
		}
	}
	return hns.Endpoint{}, errors.Join(err, errors.New("no endpoint"))
}

func (v *counting) run(_ context.Context, args ...string) ([]byte, error) {
	e, err := v.endpoint()
	if v.missing {
		err = rulecounters.ErrMissing
	}
	if err != nil {
		return nil, err
	}
	switch strings.Join(args, " ") {
	case "/list-vmswitch-port /format 1":
		return fmt.Appendf(nil, `{"Ports":[{"Id":%q,"Name":%q}]}`, strings.ToUpper(e.ID), vfpPort), nil
	case "/port " + vfpPort + " /get-rule-counter /format 1":
		if v.broken != "" {
			return []byte(v.broken), nil
		}
		return fmt.Appendf(nil, `{"Layers":[{"Name":"ACL_ENDPOINT_LAYER","Groups":[{"Rules":[{%q:%q,"InformationArray":[{"RuleCounters":{"MatchedPackets":%d}}]}]}]}]}`,
			v.member, counterRule, 1000+v.matched), nil
	}
	return nil, fmt.Errorf("vfpctrl %q", args)
}

// TestCounterUnit: the answer is the unit that VFP counts in. Other output, and counters that are neither, are not as
// assumed. The policies of the pod are restored.
func TestCounterUnit(t *testing.T) {
	packets, flows := func(n int) int { return n }, func(int) int { return 1 }
	for name, c := range map[string]struct {
		vfp    counting
		answer string
		wrong  bool
		detail string
	}{
		"packets":  {counting{each: packets, member: "Name"}, "packets", false, "grew by 10 for 10 datagrams of one flow; Name of the rule"},
		"flows":    {counting{each: flows, member: "Id"}, "flows", false, "grew by 1 for 10 datagrams of one flow; Id of the rule"},
		"neither":  {counting{each: func(n int) int { return (n + 1) / 2 }, member: "Id"}, "5 of 10 packets", true, "grew by 5"},
		"lost":     {counting{each: packets, member: "Id", lost: true}, "", false, "matched 0 of 5 datagrams"},
		"missing":  {counting{each: packets, missing: true}, "", false, "no vfpctrl.exe"},
		"text":     {counting{each: packets, broken: "ITEM LIST"}, "other output", true, "not the expected JSON"},
		"other id": {counting{each: packets, member: "Other"}, "other output", true, `none with Id or Name "conformance-counter"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t, hns.Server2022, hns.Reading{})
			o, err := parse([]string{"--address", "10.1.0.20"}, os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			b, err := newBench(t.Context(), s.fake, o)
			if err != nil {
				t.Fatal(err)
			}
			before := s.fake.Dump()
			c.vfp.s, c.vfp.ip = &s, netip.MustParseAddr("10.1.0.10")
			b.host = outside{vfpctrl: c.vfp.run, send: c.vfp.send, wait: 50 * time.Millisecond}
			a, err := b.counterUnit(t.Context(), s.pods)
			if err != nil || a.ID != "ad" || a.Question == "" || a.Answer != c.answer || a.Wrong != c.wrong || !strings.Contains(a.Detail, c.detail) {
				t.Errorf("%+v, %v", a, err)
			}
			if after := s.fake.Dump(); after != before {
				t.Errorf("left behind:\n%s\nwas\n%s", after, before)
			}
			if a, err := b.counterUnit(t.Context(), nil); err != nil || a.Answer != "" || !strings.Contains(a.Detail, "--pods") {
				t.Errorf("without pods: %+v, %v", a, err)
			}
		})
	}
}
