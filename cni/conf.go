// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
)

// DefaultTimeout bounds a request if the configuration does not.
const DefaultTimeout = 60 * time.Second

// maxTimeout is the longest timeout that a configuration may set.
const maxTimeout = 10 * time.Minute

// Conf holds the keys of the network configuration that the plugin uses. It ignores unknown keys, which
// belong to other components.
type Conf struct {
	CNIVersion string
	Name       string
	// Mode selects the plugin that makes the pod's interface.
	Mode Mode
	// Socket is the agent's address.
	Socket string
	// Timeout bounds a request to the agent.
	Timeout time.Duration
	// DNS is passed to the agent and copied to the result.
	DNS types.DNS
	// PrevResult is the result of the plugin before this one, or of ADD.
	PrevResult types.Result
	// badResult is why PrevResult cannot be used. ADD and CHECK need it; DEL works without.
	badResult error
	// passedOn is PrevResult as Policy prints it.
	passedOn []byte
	// Valid are the attachments that GC keeps; nil if the key is missing.
	Valid []types.GCAttachment
	// hostPorts are the host ports that a runtime requests.
	hostPorts []cniframe.HostPort
	// bandwidth are the limits that a runtime requests, nil for none.
	bandwidth *cniframe.Bandwidth
	// dns is DNS as the agent gets it, nil for none.
	dns *cniframe.DNS
	// invalid is the first wrong value that only ADD depends on.
	invalid error
	// refused lists the keys that request unsupported features; ADD fails with them.
	refused []string
}

// unsupported maps the capabilities that a runtime may pass in runtimeConfig to the remedy.
var unsupported = map[string]string{
	"ipRanges":       "addresses come from the node's pod ranges: remove the ipRanges capability",
	"ips":            "addresses come from the node's pod ranges: remove the request for fixed addresses",
	"mac":            "the hardware address is chosen by the agent: remove the request for a fixed one",
	"infinibandGUID": "InfiniBand is not supported: remove the infinibandGUID capability",
	"deviceID":       "devices cannot be passed to pods: remove the deviceID capability",
	"aliases":        "aliases are not supported: remove the aliases capability",
}

// ParseConf parses a network configuration. The error is a *types.Error: code 6 if it is not a JSON object,
// code 7 with key and value if a value is invalid.
func ParseConf(stdin []byte) (*Conf, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &keys); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "network configuration is not a JSON object", err.Error())
	}
	if keys == nil {
		return nil, types.NewError(types.ErrDecodingFailure, "network configuration is not a JSON object", "it is null")
	}
	c := &Conf{Socket: socket.Default, Timeout: DefaultTimeout}
	for _, read := range []func(map[string]json.RawMessage) error{
		c.readMode, c.readStandard, c.readOwn, c.readRuntimeConfig, c.readAttachments, c.readPrevResult,
	} {
		if err := read(keys); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// wrong returns the error about one key.
func wrong(key string, value []byte, remedy string) error {
	text := string(bytes.TrimSpace(value))
	if len(text) > 100 {
		text = text[:97] + "..."
	}
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("network configuration: %q: %s is not valid", key, text), remedy)
}

// read decodes a key if it exists.
func read(keys map[string]json.RawMessage, key string, into any, remedy string) error {
	if raw, ok := keys[key]; ok {
		if err := json.Unmarshal(raw, into); err != nil {
			return wrong(key, raw, remedy)
		}
	}
	return nil
}

func (c *Conf) readStandard(keys map[string]json.RawMessage) error {
	if err := read(keys, "cniVersion", &c.CNIVersion, "use a version as a string"); err != nil {
		return err
	}
	if err := read(keys, "name", &c.Name, "use a name as a string"); err != nil {
		return err
	}
	if err := read(keys, "dns", &c.DNS, "use an object with nameservers, domain, search and options"); err != nil {
		return err
	}
	var ipam struct{ Type string }
	if err := read(keys, "ipam", &ipam, "remove it: the agent allocates addresses"); err != nil {
		return err
	}
	if ipam.Type != "" && c.Mode == Full {
		c.refused = append(c.refused, fmt.Sprintf("ipam.type %q: the agent allocates addresses from the node's pod ranges: remove ipam", ipam.Type))
	}
	return nil
}

func (c *Conf) readOwn(keys map[string]json.RawMessage) error {
	const remedy = "use the absolute path of the agent's socket, on Windows the name of its pipe"
	if err := read(keys, "socket", &c.Socket, remedy); err != nil {
		return err
	}
	if !filepath.IsAbs(c.Socket) && !strings.HasPrefix(c.Socket, `\\.\pipe\`) {
		return wrong("socket", keys["socket"], remedy)
	}
	if raw, ok := keys["timeoutSeconds"]; ok {
		var seconds float64
		if err := json.Unmarshal(raw, &seconds); err != nil || seconds <= 0 || seconds > maxTimeout.Seconds() {
			return wrong("timeoutSeconds", raw, fmt.Sprintf("use a number above 0, at most %g", maxTimeout.Seconds()))
		}
		c.Timeout = time.Duration(seconds * float64(time.Second))
	}
	if raw, ok := keys["mtu"]; ok && c.Mode == Full {
		c.refused = append(c.refused, fmt.Sprintf("mtu %s: the MTU is the agent's: remove it and start the agent with --mtu", raw))
	}
	return nil
}

func (c *Conf) readRuntimeConfig(keys map[string]json.RawMessage) error {
	var capabilities map[string]json.RawMessage
	if err := read(keys, "runtimeConfig", &capabilities, "use an object"); err != nil {
		return err
	}
	if c.Mode == Policy {
		c.refuseNetwork(keys, capabilities)
		return nil
	}
	for name, raw := range capabilities {
		if why, ok := unsupported[name]; ok && !empty(raw) {
			c.refused = append(c.refused, fmt.Sprintf("runtimeConfig.%s: %s", name, why))
		}
	}
	c.readPorts(capabilities["portMappings"])
	c.readBandwidth(capabilities["bandwidth"])
	slices.Sort(c.refused)
	return c.readDNS(capabilities)
}

// empty reports whether a value requests nothing.
func empty(raw json.RawMessage) bool {
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return false
	}
	switch v := value.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case string:
		return v == ""
	case map[string]any:
		return len(v) == 0
	}
	return false
}

func (c *Conf) readAttachments(keys map[string]json.RawMessage) error {
	// libcni passes the list under two names (containernetworking/cni #1101).
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		if _, ok := keys[key]; !ok || c.Valid != nil {
			continue
		}
		c.Valid = []types.GCAttachment{}
		if err := read(keys, key, &c.Valid, "use a list of objects with containerID and ifname"); err != nil {
			return err
		}
		if c.Valid == nil { // null
			c.Valid = []types.GCAttachment{}
		}
	}
	return nil
}

func (c *Conf) readPrevResult(keys map[string]json.RawMessage) error {
	raw, ok := keys["prevResult"]
	if !ok || string(bytes.TrimSpace(raw)) == "null" {
		return nil
	}
	c.badResult = c.parsePrevResult(raw)
	return nil
}

func (c *Conf) parsePrevResult(raw json.RawMessage) error {
	const remedy = "pass the result of ADD as it was printed"
	// The CNI library takes null for an interface or an address, and then fails to convert it. It ignores the case
	// of keys, and may read any of several that differ in case only.
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return wrong("prevResult", raw, remedy)
	}
	for key, value := range keys {
		var list []any
		if !strings.EqualFold(key, "interfaces") && !strings.EqualFold(key, "ips") {
			continue
		}
		if err := json.Unmarshal(value, &list); err != nil || slices.Contains(list, nil) {
			return wrong("prevResult", raw, remedy)
		}
	}
	if c.Mode == Policy {
		return c.readForeignResult(raw, remedy)
	}
	p := types.PluginConf{CNIVersion: c.CNIVersion}
	if err := json.Unmarshal(raw, &p.RawPrevResult); err != nil {
		return wrong("prevResult", raw, remedy)
	}
	if err := version.ParsePrevResult(&p); err != nil {
		return wrong("prevResult", raw, remedy+": "+err.Error())
	}
	c.PrevResult = p.PrevResult
	return nil
}

// checkAdd returns an error for requests that ADD cannot fulfil. DEL must work with any configuration.
func (c *Conf) checkAdd() error {
	if err := cmp.Or(c.invalid, c.badResult); err != nil {
		return err
	}
	refused := c.refused
	switch {
	case c.Mode == Policy && c.PrevResult == nil:
		refused = append(slices.Clip(refused), noPrevResult)
	case c.Mode == Full && c.PrevResult != nil:
		refused = append(slices.Clip(refused), "prevResult: isthmus creates the pod's interface and must be the first plugin of the list, or have \"mode\": \"policy\"")
	}
	if len(refused) == 0 {
		return nil
	}
	return types.NewError(types.ErrInvalidNetworkConfig, "network configuration requests an unsupported feature: "+refused[0], strings.Join(refused[1:], "; "))
}
