// SPDX-License-Identifier: Apache-2.0

package rulecounters

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Bounds of the output of vfpctrl.
const (
	// MaxOutput is in bytes: 20 times that of the longest list that HNS accepts.
	MaxOutput = 16 << 20
	maxPorts  = 4096
	maxRules  = 20_000
)

// aclLayer is the layer of the rules that HNS makes of ACLs of endpoints.
const aclLayer = "ACL_ENDPOINT_LAYER"

// Rule is a rule of the layer of ACLs, with its counter. VFP has the Id of the ACL in ID or in Name; which, is not
// documented.
type Rule struct {
	ID, Name string
	Group    string
	Priority uint32
	// Matched is the number of packets, since the rule was written.
	Matched uint64
}

// guid is how HNS writes GUIDs, in either case.
var guid = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)

// DecodePorts decodes the output of /list-vmswitch-port /format 1. It returns the names of the ports, by the
// lower-case GUID of the endpoint, which is their friendly name. Other ports are not in it.
func DecodePorts(output []byte) (map[string]string, error) {
	var list struct {
		Ports []struct{ ID, Name string }
	}
	if err := decode(output, &list); err != nil {
		return nil, err
	}
	if list.Ports == nil {
		return nil, errors.New("it has no ports")
	}
	if len(list.Ports) > maxPorts {
		return nil, fmt.Errorf("it has %d ports, more than %d", len(list.Ports), maxPorts)
	}
	ports := make(map[string]string)
	for _, p := range list.Ports {
		if !guid.MatchString(p.ID) || !guid.MatchString(p.Name) {
			continue
		}
		id := strings.ToLower(p.ID)
		if was, ok := ports[id]; ok && was != p.Name {
			return nil, fmt.Errorf("it has two ports of endpoint %s", id)
		}
		ports[id] = p.Name
	}
	return ports, nil
}

// layer is a layer of the output of /get-rule-counter /format 1. Unknown fields are ignored.
type layer struct {
	ID, Name string
	Groups   []struct {
		Name  string
		Rules []struct {
			ID, Name         string
			Priority         uint32
			InformationArray []struct {
				RuleCounters *struct{ MatchedPackets *uint64 }
			}
		}
	}
}

// DecodeRules decodes the output of /get-rule-counter /format 1 for a port. It returns the rules that HNS makes of
// ACLs, and an error if one of them has no counter.
func DecodeRules(output []byte) ([]Rule, error) {
	var list struct{ Layers []layer }
	if err := decode(output, &list); err != nil {
		return nil, err
	}
	var rules []Rule
	found := false
	for _, l := range list.Layers {
		if !strings.EqualFold(l.ID, aclLayer) && !strings.EqualFold(l.Name, aclLayer) {
			continue
		}
		found = true
		for _, g := range l.Groups {
			for _, r := range g.Rules {
				if len(r.InformationArray) == 0 || r.InformationArray[0].RuleCounters == nil || r.InformationArray[0].RuleCounters.MatchedPackets == nil {
					return nil, fmt.Errorf("rule %.80q has no MatchedPackets", r.Name)
				}
				rules = append(rules, Rule{ID: r.ID, Name: r.Name, Group: g.Name, Priority: r.Priority, Matched: *r.InformationArray[0].RuleCounters.MatchedPackets})
			}
		}
	}
	if !found {
		return nil, errors.New("it has no layer " + aclLayer)
	}
	if len(rules) > maxRules {
		return nil, fmt.Errorf("it has %d rules, more than %d", len(rules), maxRules)
	}
	return rules, nil
}

// decode decodes one JSON value, which may begin with a byte order mark.
func decode(output []byte, into any) error {
	output = bytes.TrimPrefix(output, []byte("\xef\xbb\xbf"))
	if len(output) > MaxOutput {
		return fmt.Errorf("it is longer than %d bytes", MaxOutput)
	}
	if err := json.Unmarshal(output, into); err != nil {
		return fmt.Errorf("it is not the expected JSON: %w", err)
	}
	return nil
}
