// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"unicode"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/model"
)

// attachmentID validates the key of an attachment by the rules of the CNI specification, section 2.
func attachmentID(a cniframe.Attachment) (model.EndpointID, error) {
	id, name := a.ContainerID, a.IfName
	// "Must start with an alphanumeric character, optionally followed by any
	// combination of one or more alphanumeric characters, underscore (_), dot
	// (.) or hyphen (-)" (CNI_CONTAINERID).
	if !validName(id, 1024) {
		return "", refuse(CodeEnv, "use letters, digits, '_', '.' and '-', beginning with a letter or digit", "CNI_CONTAINERID %q is not valid", shorten(id))
	}
	// "Must not be empty, must not be longer than 15 characters, must not be .
	// or .., must not contain /, : or whitespace" (CNI_IFNAME).
	if name == "" || len(name) > 15 || name == "." || name == ".." || strings.ContainsFunc(name, notInIfName) {
		return "", refuse(CodeEnv, "use 1 to 15 characters without '/', ':' and spaces", "CNI_IFNAME %q is not valid", shorten(name))
	}
	return model.MakeEndpointID(id, name), nil
}

func notInIfName(r rune) bool {
	return r == '/' || r == ':' || r == unicode.ReplacementChar || unicode.IsSpace(r) || unicode.IsControl(r)
}

// checkAdd validates an ADD request and returns its endpoint id.
func checkAdd(r *cniframe.AddRequest) (model.EndpointID, error) {
	id, err := attachmentID(r.Attachment)
	if err != nil {
		return "", err
	}
	if n := r.Netns; n == "" || len(n) > 4096 || strings.ContainsFunc(n, unicode.IsControl) {
		return "", refuse(CodeEnv, "give the path of a network namespace, on Windows the GUID of an HCN namespace", "CNI_NETNS %q is not valid", shorten(n))
	}
	if r.PodNamespace == "" || r.PodName == "" {
		return "", refuse(CodeEnv, "let the runtime pass K8S_POD_NAMESPACE and K8S_POD_NAME", "CNI_ARGS has no pod name or namespace for %s", id)
	}
	if !validDNS(r.PodNamespace, 63, false) {
		return "", refuse(CodeEnv, "it must be a DNS label", "K8S_POD_NAMESPACE %q in CNI_ARGS is not valid", shorten(r.PodNamespace))
	}
	if !validDNS(r.PodName, 253, true) {
		return "", refuse(CodeEnv, "it must be a DNS subdomain", "K8S_POD_NAME %q in CNI_ARGS is not valid", shorten(r.PodName))
	}
	if u := r.PodUID; u != "" && !validName(u, 253) {
		return "", refuse(CodeEnv, "pass the pod's metadata.uid", "K8S_POD_UID %q in CNI_ARGS is not valid", shorten(u))
	}
	if n := r.Network; n != "" && !validName(n, 1024) {
		return "", refuse(CodeEnv, "use letters, digits, '_', '.' and '-', beginning with a letter or digit", "network name %q is not valid", shorten(n))
	}
	return id, nil
}

// validName reports whether s is a valid container id or network name.
func validName(s string, longest int) bool {
	for i := range len(s) {
		if !alphanumeric(s[i]) && (i == 0 || !strings.ContainsRune("_.-", rune(s[i]))) {
			return false
		}
	}
	return s != "" && len(s) <= longest
}

// validDNS reports whether s is a DNS label of RFC 1123 or, with dots, a DNS subdomain.
func validDNS(s string, longest int, dots bool) bool {
	if len(s) > longest {
		return false
	}
	labels := []string{s}
	if dots {
		labels = strings.Split(s, ".")
	}
	for _, l := range labels {
		if l == "" || l != strings.ToLower(l) || !alphanumeric(l[0]) || !alphanumeric(l[len(l)-1]) {
			return false
		}
		for i := range len(l) {
			if !alphanumeric(l[i]) && l[i] != '-' {
				return false
			}
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// shorten truncates long text of a caller, so that messages stay readable.
func shorten(s string) string {
	if len(s) > 64 {
		return s[:61] + "..."
	}
	return s
}

// samePod reports whether the UID of a runtime and that of the API can belong to the same pod. The kubelet
// gives a static pod the hash of its manifest, 32 hexadecimal digits, while the API has the UID of its
// mirror pod (kubelet, as of 2026-11).
func samePod(runtime, api string) bool {
	return runtime == "" || api == "" || runtime == api || staticUID(runtime)
}

func staticUID(uid string) bool {
	return len(uid) == 32 && strings.Trim(uid, "0123456789abcdef") == ""
}
