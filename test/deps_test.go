// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/isthmus-net/isthmus/"

// listed holds the fields of go list that the tests use.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// list runs go list for one operating system.
func list(t *testing.T, goos string, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,Deps"}, args...)...)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list for %s: %v\n%s", goos, err, stderr.String())
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// rule forbids the packages under from to import the packages under banned directly, except for the
// named packages.
type rule struct {
	from   []string
	banned []string
	except []string
	reason string
}

var (
	kubernetes = []string{"k8s.io/", "sigs.k8s.io/"}
	systems    = []string{module + "linux", module + "windows", "github.com/cilium/ebpf", "github.com/vishvananda/netlink", "github.com/google/nftables", "github.com/Microsoft/hcsshim"}
)

var rules = []rule{
	{from: []string{"common/endpoint"}, banned: []string{module}, except: []string{"common/model"},
		reason: "records depend on the nouns alone"},
	{from: []string{"common/fabric"}, banned: []string{module}, except: []string{"common/model"},
		reason: "a plan depends on the nouns alone"},
	{from: []string{"common/dataplane"}, banned: []string{module}, except: []string{"common/model"},
		reason: "the boundary to the systems knows the nouns alone"},
	{from: []string{"common", "cni", "linux", "windows", "cmd"}, banned: kubernetes, except: []string{"common/kube"},
		reason: "only the packages of common/kube know Kubernetes' types"},
	{from: []string{"common/kube/convert"}, banned: []string{"k8s.io/client-go", "net/http"}, reason: "a conversion needs no API server"},
	{from: []string{"common/kube/manifests"}, banned: []string{"k8s.io/client-go", module + "common/kube/watch"}, reason: "manifests are read without an API server"},
	{from: []string{"common", "cni"}, banned: systems, reason: "what is common knows no operating system"},
	{from: []string{"linux"}, banned: []string{module + "windows", module + "common/policy", module + "common/analysis", module + "common/kube", module + "common/agent", module + "common/api", module + "cni", module + "cmd"},
		reason: "a backend sees the boundary and the nouns, not who calls it"},
	{from: []string{"windows"}, banned: []string{module + "linux", module + "common/policy", module + "common/analysis", module + "common/kube", module + "common/agent", module + "common/api", module + "cni", module + "cmd"},
		reason: "a backend sees the boundary and the nouns, not who calls it"},
	{from: []string{"cmd", "cni", "common", "linux", "windows"}, banned: []string{"github.com/Microsoft/hcsshim"}, except: []string{"windows/hns"},
		reason: "windows/hns is the only package that calls HNS"},
	{from: []string{"cmd", "cni", "common", "linux", "windows"}, banned: []string{"github.com/vishvananda/netlink", "github.com/google/nftables"},
		except: []string{"linux/link", "linux/bandwidth", "linux/engines", "linux/fabric", "linux/foreign", "linux/hostport", "linux/kubeproxy", "linux/netfilter", "linux/takeover"},
		reason: "netlink and nftables are reached by the packages that own such objects"},
	{from: []string{"cmd", "cni", "common", "linux", "windows"}, banned: []string{"github.com/cilium/ebpf"},
		except: []string{"linux/bpfobj", "linux/loader", "linux/xdp", "linux/migrate", "linux/flowtable", "linux/clock", "linux/takeover", "linux/testrun"}, reason: "the kernel's BPF is reached through the loaders and the packages that they use"},
	{from: []string{"cmd", "cni", "common", "linux", "windows"}, banned: []string{"google.golang.org/grpc", "google.golang.org/protobuf", module + "common/api/isthmus"},
		except: []string{"common/api/isthmus", "common/api/hubble", "common/agent/server", "common/hubble", "common/relay", "cmd/isthmus-relay", "cmd/isthmusctl/node"}, reason: "state stays typed up to the edge: the server and the commands that ask it alone know its messages"},
	{from: []string{"cmd", "cni", "common", "linux", "windows"}, banned: []string{module + "test"}, reason: "the product does not import tests"},
	{from: []string{"cmd", "cni", "common", "linux", "windows"}, banned: []string{module + "windows/hns/hnstest", module + "common/dataplane/dataplanetest", module + "common/kube/kubetest", module + "cmd/isthmusctl/clitest", module + "common/hubble/hubbletest"},
		reason: "fakes are for tests: only they and test/ import them"},
	{from: []string{"test/hnsemu/facts"}, banned: []string{module}, reason: "a second opinion about HNS shares no code with the first"},
	{from: []string{"test/path/reference"}, banned: []string{module, "github.com/", "golang.org/"}, reason: "a reference that shares code with what it judges shares its mistakes"},
}

func TestImports(t *testing.T) {
	for _, goos := range []string{"linux", "windows", "darwin"} {
		for _, p := range list(t, goos, "./...") {
			name, ok := strings.CutPrefix(p.ImportPath, module)
			if !ok {
				continue
			}
			for _, r := range rules {
				if !under(name, r.from) || under(name, r.except) {
					continue
				}
				for _, i := range p.Imports {
					banned := slices.ContainsFunc(r.banned, func(b string) bool {
						return i == strings.TrimSuffix(b, "/") || strings.HasPrefix(i, strings.TrimSuffix(b, "/")+"/")
					})
					if allowed, ours := strings.CutPrefix(i, module); banned && !(ours && under(allowed, append(r.except, r.from[0]))) {
						t.Errorf("GOOS=%s: %s imports %s: %s", goos, name, i, r.reason)
					}
				}
			}
		}
	}
}

// under reports whether a package is one of the directories or below one.
func under(name string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return name == d || strings.HasPrefix(name, d+"/") })
}

// TestSpecificationAndCompilerShareNouns checks that the specification and the compiler share nouns
// but no code. Otherwise tests that compare the two would compare shared code with itself.
func TestSpecificationAndCompilerShareNouns(t *testing.T) {
	for _, p := range list(t, "linux", "./common/policy", "./common/policy/compile") {
		for _, i := range p.Imports {
			if name, ours := strings.CutPrefix(i, module); ours && !under(name, []string{"common/model"}) {
				t.Errorf("%s imports %s: it may import common/model only", p.ImportPath, i)
			}
		}
	}
}

// TestCommandsAreNotImported checks that no package outside cmd/ imports a package under it,
// including tests and separate modules: shared code belongs in a library.
func TestCommandsAreNotImported(t *testing.T) {
	for _, f := range sources(t, ".go") {
		if strings.HasPrefix(f.name, "cmd/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.name, f.text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range parsed.Imports {
			if strings.HasPrefix(i.Path.Value, `"`+module+"cmd/") {
				t.Errorf("%s imports %s: move what it needs to common/analysis, or to the package that owns it", f.name, i.Path.Value)
			}
		}
	}
}

// Packages that may import nothing but the standard library. The pool of addresses may also
// import netipx, which calculates with the types of net/netip and imports nothing else.
func TestStandardLibraryOnly(t *testing.T) {
	for dir, except := range map[string]string{"common/model": "", "common/ipam": "go4.org/netipx", "common/nodeipam": ""} {
		for _, p := range list(t, "linux", "-deps", "./"+dir+"/...") {
			if !p.Standard && !under(p.ImportPath, []string{module + dir}) && p.ImportPath != except {
				t.Errorf("%s depends on %s", dir, p.ImportPath)
			}
		}
	}
}

// Packages that a command must not contain, including indirect imports.
func TestBinaries(t *testing.T) {
	// Packages that take too long to load in a plugin.
	slow := []string{"k8s.io/client-go", "net/http", "crypto/tls", "google.golang.org/grpc", "google.golang.org/protobuf"}
	for _, c := range []struct {
		goos, cmd string
		banned    []string
	}{
		{"linux", "isthmus-agent", []string{module + "windows", "github.com/Microsoft/hcsshim", "k8s.io/client-go/kubernetes"}},
		{"windows", "isthmus-agent", []string{module + "linux", "github.com/cilium/ebpf", "github.com/vishvananda/netlink"}},
		{"linux", "isthmus-controller", append(systems, module+"common/agent", module+"cni")},
		{"linux", "isthmus-relay", append(systems, module+"common/agent", module+"common/kube/watch", module+"common/kube/convert", module+"common/kube/writeback", module+"cni")},
		{"linux", "isthmus-cni", append(systems, slow...)},
		{"windows", "isthmus-cni", append(systems, slow...)},
	} {
		for _, p := range list(t, c.goos, "-deps", "./cmd/"+c.cmd) {
			for _, b := range c.banned {
				if p.ImportPath == b || strings.HasPrefix(p.ImportPath, b+"/") {
					t.Errorf("%s for %s contains %s", c.cmd, c.goos, p.ImportPath)
				}
			}
		}
	}
}

// No package registers itself.
func TestNoInit(t *testing.T) {
	for _, f := range sources(t, ".go") {
		if strings.HasSuffix(f.name, "_test.go") || f.generated {
			continue
		}
		if strings.Contains(f.text, "\nfunc init()") {
			t.Errorf("%s has an init function", f.name)
		}
	}
}
