// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// proxySettings are the relevant settings of kube-proxy.
type proxySettings struct{ mode, masqueradeAll string }

// checkProxy checks the flags and the configuration file of a kube-proxy process.
func (c Config) checkProxy() []Finding {
	const check = "kube-proxy"
	lines, err := filepath.Glob(filepath.Join(c.Root, "proc", "[0-9]*", "cmdline"))
	if err != nil || len(lines) == 0 {
		return []Finding{{check, Unknown, "no processes are visible", "its mode may be untested", "run this on the node as root"}}
	}
	for _, line := range lines {
		text, err := os.ReadFile(line)
		args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		if err != nil || filepath.Base(args[0]) != "kube-proxy" || elsewhere(filepath.Dir(line)) {
			continue
		}
		s, err := c.proxySettings(filepath.Dir(line), args[1:])
		if err != nil {
			return []Finding{{check, Unknown, err.Error(), "its mode may be untested", "run this as root, and check the file yourself"}}
		}
		return s.findings(check)
	}
	return []Finding{{check, Warning, "no kube-proxy runs",
		"without kube-proxy or a replacement, addresses of Services do not work; policy on Services is untested with replacements",
		"run kube-proxy in mode nftables or iptables"}}
}

// elsewhere reports whether a process is known to be in another network namespace, as on a
// machine that emulates several nodes.
func elsewhere(process string) bool {
	its, err := os.Readlink(filepath.Join(process, "ns", "net"))
	own, ownErr := os.Readlink("/proc/thread-self/ns/net")
	return err == nil && ownErr == nil && its != own
}

func (c Config) proxySettings(process string, args []string) (s proxySettings, err error) {
	var file string
	for i, a := range args {
		name, value, given := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !given && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			value = args[i+1]
		}
		switch name {
		case "config":
			file = value
		case "proxy-mode":
			s.mode = value
		case "masquerade-all":
			s.masqueradeAll = value
			if value == "" {
				s.masqueradeAll = "true"
			}
		}
	}
	if file == "" {
		return s, nil
	}
	// The path as the process sees it, which may be in a container.
	text, err := os.ReadFile(filepath.Join(process, "root", file))
	if err != nil {
		return s, fmt.Errorf("read configuration of kube-proxy: %w", err)
	}
	var config struct {
		Mode     string
		IPTables struct {
			MasqueradeAll bool `yaml:"masqueradeAll"`
		} `yaml:"iptables"`
		NFTables struct {
			MasqueradeAll bool `yaml:"masqueradeAll"`
		} `yaml:"nftables"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return s, fmt.Errorf("read configuration of kube-proxy: %w", err)
	}
	s.mode = config.Mode // a file overrides the flags
	s.masqueradeAll = fmt.Sprint(config.IPTables.MasqueradeAll || config.NFTables.MasqueradeAll)
	return s, nil
}

func (s proxySettings) findings(check string) []Finding {
	var found []Finding
	mode := s.mode
	if mode == "" {
		mode = "iptables, the default"
	}
	if s.masqueradeAll == "true" {
		found = append(found, Finding{check, Bad, "masqueradeAll is on",
			"connections to Services come from the node's address: policies for pods deny them, and policies that accept nodes allow them",
			"disable --masquerade-all (masqueradeAll) and restart kube-proxy"})
	}
	if s.mode == "ipvs" || s.mode == "kernelspace" {
		found = append(found, Finding{check, Warning, "mode is " + s.mode, "only nftables and iptables are tested on Linux", "use --proxy-mode=nftables"})
	}
	if len(found) == 0 {
		found = []Finding{{Check: check, Severity: Good, What: "mode " + mode}}
	}
	return found
}
