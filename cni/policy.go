// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

// Mode selects the plugin that makes the pod's interface.
type Mode string

const (
	// Full makes the interface, and must be the first plugin of the list.
	Full Mode = "full"
	// Policy enforces policy on the interface that an earlier plugin of the list made.
	Policy Mode = "policy"
)

// Bounds of the properties of another plugin's interface that a plugin passes to the agent.
const (
	maxHostIfNames = 16
	maxOthers      = 16
	// maxIfName is IFNAMSIZ of Linux without the final zero.
	maxIfName = 15
)

const noPrevResult = "prevResult is missing: put isthmus-cni behind the plugin that makes the interface, in the same list"

func (c *Conf) readMode(keys map[string]json.RawMessage) error {
	const remedy = `use "full" (isthmus makes the interface) or "policy" (an earlier plugin of the list makes it)`
	c.Mode = Full
	if err := read(keys, "mode", &c.Mode, remedy); err != nil {
		return err
	}
	if c.Mode != Full && c.Mode != Policy {
		c.invalid = wrong("mode", keys["mode"], remedy) // DEL works in every mode
	}
	return nil
}

// refuseNetwork refuses keys about the network of the pod, which is the other plugin's. Ignoring them
// silently would hide that neither plugin implements them.
func (c *Conf) refuseNetwork(keys, capabilities map[string]json.RawMessage) {
	for _, key := range []string{"ipam", "ranges", "mtu", "dns"} {
		if raw, ok := keys[key]; ok && !empty(raw) {
			c.refused = append(c.refused, key+`: "mode": "policy" makes no interface: remove it here and set it in the plugin that makes the interface`)
		}
	}
	for name, raw := range capabilities {
		_, known := unsupported[name]
		if (known || name == "portMappings" || name == "bandwidth" || name == "dns") && !empty(raw) {
			c.refused = append(c.refused, "runtimeConfig."+name+`: "mode": "policy" only enforces policy: remove the capability `+name+" from the entry of isthmus-cni, and declare it for a plugin that has it")
		}
	}
	slices.Sort(c.refused)
}

// addForeign requests policy on the interface of prevResult from the agent, and prints prevResult.
func (p *Plugin) addForeign(conf *Conf, args *skel.CmdArgs, pod *podArgs) error {
	foreign, err := conf.foreign(args)
	if err != nil {
		return err
	}
	var answer cniframe.AddResponse
	err = p.call(conf, types.ErrTryAgainLater, cniframe.Add, &cniframe.AddRequest{Attachment: attachment(args), Netns: args.Netns, Network: conf.Name,
		PodNamespace: string(pod.K8S_POD_NAMESPACE), PodName: string(pod.K8S_POD_NAME), PodUID: string(pod.K8S_POD_UID), Foreign: foreign}, &answer)
	if err != nil {
		return err
	}
	if len(answer.Gateways) > 0 {
		// An agent of an earlier version ignores Foreign, and made an interface.
		remedy := "install the same version of the plugin and the agent"
		if err := p.call(conf, types.ErrTryAgainLater, cniframe.Del, &cniframe.DelRequest{Attachment: attachment(args)}, nil); err != nil {
			remedy += "; the interface that it made remains: " + err.Error()
		}
		return types.NewError(types.ErrInvalidNetworkConfig, "isthmus-agent is too old for \"mode\": \"policy\"", remedy)
	}
	if _, err := p.Out.Write(conf.passedOn); err != nil {
		return types.NewError(types.ErrIOFailure, "print result", err.Error())
	}
	return nil
}

func (p *Plugin) checkForeign(conf *Conf, args *skel.CmdArgs) error {
	foreign, err := conf.foreign(args)
	if err != nil {
		return err
	}
	return p.call(conf, types.ErrTryAgainLater, cniframe.Check, &cniframe.CheckRequest{Attachment: attachment(args), Netns: args.Netns, Foreign: foreign}, nil)
}

// foreign returns the interface of the attachment, as prevResult describes it.
func (c *Conf) foreign(args *skel.CmdArgs) (*cniframe.Foreign, error) {
	r, err := types100.GetResult(c.PrevResult)
	if err == nil {
		var f *cniframe.Foreign
		if f, err = readForeign(r, args.IfName, args.Netns); err == nil {
			return f, nil
		}
	}
	return nil, types.NewError(types.ErrInvalidNetworkConfig, "prevResult does not describe the interface of this attachment", err.Error())
}

func readForeign(r *types100.Result, ifName, netns string) (*cniframe.Foreign, error) {
	own, err := ownInterface(r.Interfaces, ifName, netns)
	if err != nil {
		return nil, err
	}
	f := &cniframe.Foreign{}
	if own >= 0 && !number(r.Interfaces[own].Mac) && !rawMAC(r.Interfaces[own].Mac) {
		mac, err := net.ParseMAC(r.Interfaces[own].Mac)
		if err != nil {
			return nil, fmt.Errorf("prevResult.interfaces[%d].mac %q: correct the plugin that prints it: %w", own, r.Interfaces[own].Mac, err)
		}
		f.MAC = mac.String()
	}
	for i, inf := range r.Interfaces {
		if i != own && inf.Sandbox == "" && inf.Name != "" && len(inf.Name) <= maxIfName && len(f.HostIfNames) < maxHostIfNames {
			f.HostIfNames = append(f.HostIfNames, inf.Name)
		}
		if i != own && inf.Sandbox != "" && strings.EqualFold(inf.Sandbox, netns) && inf.Name != "lo" && len(f.Others) < maxOthers {
			f.Others = append(f.Others, inf.Name)
		}
	}
	for i, ip := range r.IPs {
		if ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(r.Interfaces)) {
			return nil, fmt.Errorf("prevResult.ips[%d].interface %d: prevResult has %d interfaces: correct the plugin that prints it", i, *ip.Interface, len(r.Interfaces))
		}
		if ip.Interface != nil && *ip.Interface != own {
			continue
		}
		address, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("prevResult.ips[%d].address is not an address: correct the plugin that prints it", i)
		}
		if text := address.Unmap().String(); !slices.Contains(f.Addresses, text) {
			f.Addresses = append(f.Addresses, text)
		}
	}
	switch n := len(f.Addresses); {
	case n == 0:
		return nil, fmt.Errorf("prevResult.ips: interface %s has no address: put isthmus-cni behind the plugin that assigns addresses", ifName)
	case n > 2*cniframe.MaxAddresses: // the agent counts them by IP version
		return nil, fmt.Errorf("prevResult.ips: interface %s has %d addresses: let the network plugin assign at most %d of each IP version to a pod", ifName, n, cniframe.MaxAddresses)
	}
	return f, nil
}

// number reports whether the text is a number instead of a MAC address, or empty. Since v1.20, the VPC CNI plugin
// prints the number of a route table there. The agent then finds the interface without comparing its MAC.
func number(mac string) bool { return strings.Trim(mac, "0123456789") == "" }

// rawMAC reports whether the text is the six bytes of a MAC address, and not their hexadecimal form. sdnbridge prints
// them (v0.3.1), where JSON has replaced each byte that is not UTF-8. The agent then compares the addresses only.
func rawMAC(text string) bool {
	size := 0
	for _, c := range text {
		if c == utf8.RuneError {
			size++
		} else {
			size += utf8.RuneLen(c)
		}
	}
	return size == 6
}

// ownInterface returns the index of the pod's interface, or -1 if the result has no interfaces at all. It is the
// one of that name in the sandbox, or else of that name without a sandbox. Plugins of Windows print the name of
// the HNS endpoint: there it is the only one in the sandbox, or the only one at all, without a sandbox. The agent
// compares what it finds in the sandbox.
func ownInterface(all []*types100.Interface, ifName, netns string) (int, error) {
	if len(all) == 0 {
		return -1, nil
	}
	for _, match := range []func(*types100.Interface) bool{
		func(i *types100.Interface) bool { return i.Name == ifName && i.Sandbox == netns },
		func(i *types100.Interface) bool { return i.Name == ifName && i.Sandbox == "" },
		func(i *types100.Interface) bool { return strings.EqualFold(i.Sandbox, netns) },
		func(i *types100.Interface) bool { return len(all) == 1 && i.Sandbox == "" },
	} {
		found := -1
		for i, inf := range all {
			if !match(inf) {
				continue
			}
			if found >= 0 {
				return 0, fmt.Errorf("prevResult.interfaces[%d] and [%d] could both be interface %s in %s: correct the plugin that prints them", found, i, ifName, netns)
			}
			found = i
		}
		if found >= 0 {
			return found, nil
		}
	}
	return 0, fmt.Errorf("prevResult.interfaces has no interface %s in %s: put isthmus-cni behind the plugin that makes it", ifName, netns)
}

// readForeignResult reads the result of another plugin. It is passed on as it is, also with keys that this
// version does not know. A result of another version than the runtime asks for is converted.
func (c *Conf) readForeignResult(raw json.RawMessage, remedy string) error {
	var printed struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(raw, &printed); err != nil {
		return wrong("prevResult", raw, remedy)
	}
	typed := raw
	if printed.CNIVersion == "" {
		// A result without a version is of the version of the configuration (libcni does the same).
		if trimmed := bytes.TrimSpace(raw); len(trimmed) > 0 && trimmed[0] == '{' {
			typed = append(fmt.Appendf(nil, `{"cniVersion":%q,`, c.CNIVersion), trimmed[1:]...)
		}
	}
	result, err := version.NewResult(cmp.Or(printed.CNIVersion, c.CNIVersion), typed)
	if err != nil {
		return wrong("prevResult", raw, remedy+": "+err.Error())
	}
	c.PrevResult, c.passedOn = result, raw
	if printed.CNIVersion == "" || printed.CNIVersion == c.CNIVersion {
		return nil
	}
	if c.PrevResult, err = result.GetAsVersion(c.CNIVersion); err == nil {
		c.passedOn, err = json.Marshal(c.PrevResult)
	}
	if err != nil {
		return wrong("prevResult", raw, "let every plugin of the list print version "+c.CNIVersion+": "+err.Error())
	}
	return nil
}
