// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// What vfpctrl prints with /format 1, in so far as public scripts read it.
type (
	vfpPort struct {
		Name string
		ID   string `json:"Id"`
	}
	vfpLayer struct {
		ID     string `json:"Id"`
		Name   string
		Groups []vfpGroup
	}
	vfpGroup struct {
		ID    string `json:"Id"`
		Name  string
		Rules []vfpRule
	}
	vfpRule struct {
		ID               string `json:"Id"`
		Name             string
		Priority         uint32
		InformationArray []vfpInformation
	}
	vfpInformation struct{ RuleCounters vfpCounters }
	vfpCounters    struct{ MatchedPackets, DroppedPackets, PendingPackets, DroppedFlows uint64 }
)

// vfpctrl executes vfpctrl.exe with arguments:
//
//	/list-vmswitch-port /format 1
//	/port NAME /get-rule-counter /format 1
func (h *Host) vfpctrl(args []string) (string, error) {
	switch {
	case slices.Equal(args, []string{"/list-vmswitch-port", "/format", "1"}):
		return render(struct{ Ports []vfpPort }{h.vfpPorts()})
	case len(args) == 5 && args[0] == "/port" && slices.Equal(args[2:], []string{"/get-rule-counter", "/format", "1"}):
		layers, err := h.vfpLayers(args[1])
		if err != nil {
			return "", err
		}
		return render(struct{ Layers []vfpLayer }{layers})
	}
	return "", fmt.Errorf("ERROR: the emulator does not know %q", strings.Join(args, " "))
}

func render(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text) + "\r\n", err
}

func (h *Host) vfpPorts() []vfpPort {
	all := []vfpPort{} // not null
	for _, p := range h.sw.VFPPorts() {
		all = append(all, vfpPort{Name: p.GUID, ID: p.Friendly})
	}
	return all
}

func (h *Host) vfpLayers(port string) ([]vfpLayer, error) {
	groups, ok := h.sw.VFPRules(port)
	if !ok {
		return nil, fmt.Errorf("ERROR: port %s does not exist", port)
	}
	layer := vfpLayer{ID: "ACL_ENDPOINT_LAYER", Name: "ACL_ENDPOINT_LAYER"}
	for _, g := range groups {
		family := "IPV4"
		if g.V6 {
			family = "IPV6"
		}
		name := "ACL_ENDPOINT_GROUP_" + family + "_" + strings.ToUpper(string(g.Direction))
		group := vfpGroup{ID: name, Name: name, Rules: []vfpRule{}}
		for i, r := range g.Rules {
			// The rule has a GUID of its own, and the Id of the ACL as its name.
			rule := vfpRule{ID: fmt.Sprintf("%08X-0ACE-4C1D-9C0F-0123456789AB", i), Name: r.ACL.ID, Priority: uint32(r.ACL.Priority)}
			rule.InformationArray = []vfpInformation{{vfpCounters{MatchedPackets: r.Matched}}}
			group.Rules = append(group.Rules, rule)
		}
		layer.Groups = append(layer.Groups, group)
	}
	return []vfpLayer{{ID: "SLB_NAT_LAYER", Name: "SLB_NAT_LAYER", Groups: []vfpGroup{}}, layer}, nil
}
