// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
)

// suite is a set of tests that make runs together.
type suite struct {
	name    string
	steps   []step   // run one after the other, also after one failed
	beside  bool     // the steps run beside each other instead
	fuzz    bool     // runs each fuzz test of the tree as a step of its own
	summary bool     // runs under gotestsum
	reports []report // printed before the totals of the summary
}

// step is one call of go test. Its packages run beside each other, as many as there
// are processors. The flag -p changes that number.
type step struct {
	dir      string   // of a module of its own, from the top of the repository
	vet      bool     // go vet instead of go test
	packages []string // patterns, as go list takes them
	except   []string // packages that match but do not run, from the top of the repository
	flags    []string
	env      []string
}

// report is a line that tests leave in files.
type report struct {
	prefix string
	files  string // a pattern of files under build; their contents make up the line
}

// Where tests leave their reports.
var (
	windowsReport = report{prefix: "windows: ", files: "build/windows/*"}
	attackReport  = report{files: "build/attack/line"}
	habitsReport  = report{files: "build/habits/line"}
)

// concurrent lists what has goroutines of its own, in so far as it needs no root. The
// other packages are pure functions, or wait for the kernel.
var concurrent = []string{"./common/access", "./common/agent/...", "./common/api/cniframe", "./common/endpoint", "./common/httpd",
	"./common/hubble", "./common/relay/...", "./common/kube/...",
	"./common/observe", "./common/page", "./cmd/isthmus-controller", "./cni/...", "./windows/hns/...", "./test/hnsemu/fault", "./test/hnsemu/service"}

// suites returns the table. Environment variables that make documents set details of
// some suites.
func suites() []suite {
	return slices.Concat(wholeSuites(), systemSuites(), comparisonSuites(), fuzzSuites())
}

// wholeSuites returns the suites of a change and of a release.
func wholeSuites() []suite {
	whole := environment()
	return []suite{
		{name: "check", summary: true, steps: []step{
			{packages: []string{"./..."}, except: []string{"cni"}, flags: []string{"-short"}},
			// Its tests run the plugin, which they build: results in the cache may be those of another plugin.
			{packages: []string{"./cni"}, flags: []string{"-count=1", "-short"}},
		}},
		{name: "test", summary: true, beside: true, reports: []report{windowsReport, attackReport, habitsReport}, steps: []step{
			// The longest packages start first. They wait for the kernel, agents and Wine more than
			// they compute, so more of them, and of their tests, run than there are processors. make test
			// has run go vet before.
			{packages: []string{"./linux", "./test/wine", "./test/cluster", "./cmd/isthmus-agent", "./test/conformance", "./test/operator", "./linux/loader",
				"./test/mixed", "./windows/acl", "./windows", "./..."}, except: []string{"test/apiserver", "test/monitoring"},
				flags: []string{"-count=1", "-vet=off", "-timeout=60m", "-p=4", "-parallel=4"}, env: whole},
			underWine(),
			{dir: "deploy/release", packages: []string{"."}, flags: []string{"-count=1", "-timeout=20m"}},
		}},
		{name: "release", steps: []step{
			{dir: "deploy/release", vet: true, packages: []string{"."}},
			{dir: "deploy/release", packages: []string{"."}, flags: []string{"-count=1", "-timeout=20m", "-v"}},
			{dir: "deploy/images", vet: true, packages: []string{"."}},
			{dir: "deploy/images", packages: []string{"."}, flags: []string{"-count=1", "-v"}},
		}},
	}
}

// systemSuites returns the suites that run a part of the product against a system: Windows calls, an API server, a
// cluster, networks of others.
func systemSuites() []suite {
	whole := environment()
	wine := ""
	if w := os.Getenv("WINE"); w != "" && w != "0" {
		wine = "1"
	}
	return []suite{
		{name: "windows", summary: true, reports: []report{windowsReport}, steps: []step{
			{packages: []string{"./test/wine", "./windows/...", "./test/hnsemu/..."}, flags: []string{"-count=1", "-timeout=20m"},
				env: append([]string{"ISTHMUS_SMOKE=all"}, whole...)},
			underWine(),
			{packages: []string{"./test/wine/units"}, flags: []string{"-count=1", "-timeout=20m"}, env: append([]string{"ISTHMUS_WINE_UNITS=1"}, whole...)},
		}},
		{name: "api", summary: true, steps: []step{
			{packages: []string{"./test/apiserver"}, flags: []string{"-count=1", "-timeout=30m"}},
		}},
		{name: "cluster", steps: []step{
			{packages: []string{"./test/quickstart"}, flags: []string{"-count=1", "-timeout=60m", "-v"}, env: []string{"ISTHMUS_CLUSTER=1"}},
		}},
		{name: "attack", summary: true, reports: []report{attackReport}, steps: []step{
			{packages: []string{"./linux"}, flags: []string{"-count=1", "-timeout=20m", "-parallel=4", "-run=^TestAttack"}, env: whole},
		}},
		{name: "alerts", steps: []step{
			{dir: "test/grafana", vet: true, packages: []string{"."}},
			{dir: "test/grafana", packages: []string{"."}, flags: []string{"-count=1", "-v"}},
			{packages: []string{"./test/monitoring"}, flags: []string{"-count=1", "-timeout=40m"}},
		}},
		{name: "race", summary: true, steps: []step{
			{packages: concurrent, flags: []string{"-count=1", "-race", "-short", "-timeout=5m"}, env: []string{"CGO_ENABLED=1"}},
		}},
		{name: "churn", steps: []step{
			{packages: []string{"./windows"}, flags: []string{"-count=1", "-timeout=30m", "-v", "-run=^TestChurnUnderFaults$"},
				env: []string{"ISTHMUS_CHURN=" + cmp.Or(os.Getenv("OPERATIONS"), "5000")}},
		}},
		{name: "mixed", steps: []step{
			{packages: []string{"./test/mixed"}, flags: []string{"-count=1", "-timeout=90m", "-v"},
				env: []string{"ISTHMUS_MIXED=1", "ISTHMUS_WINE=" + wine}},
		}},
		{name: "beside", steps: []step{
			{packages: []string{"./test/beside"}, flags: []string{"-count=1", "-timeout=60m", "-v"}, env: []string{"ISTHMUS_BESIDE=1"}},
		}},
		{name: "migrate", steps: []step{
			{packages: []string{"./test/beside"}, flags: []string{"-count=1", "-timeout=20m", "-v", "-run=^TestMigrate$"}, env: []string{"ISTHMUS_MIGRATE=1"}},
		}},
		{name: "continuity", steps: []step{
			{packages: []string{"./test/cluster"}, flags: []string{"-count=1", "-v", "-run=^TestContinuity$"}, env: []string{"CONTINUITY=full"}},
		}},
	}
}

// comparisonSuites returns the suites that compare with published cases and with the programs of other projects.
func comparisonSuites() []suite {
	corpora := os.Getenv("CORPORA")
	if corpora != "" {
		corpora = absolute(corpora)
	}
	return []suite{
		{name: "corpora", steps: []step{
			{packages: []string{"./common/kube/manifests", "./cmd/isthmusctl/check", "./windows/acl"},
				flags: []string{"-count=1", "-v", "-run=Vectors|PublicManifests"}, env: []string{"CORPORA=" + corpora}},
		}},
		{name: "oracle", steps: []step{
			{dir: "test/oracle", vet: true, packages: []string{"./..."}},
			{dir: "test/oracle/analyzer", vet: true, packages: []string{"./..."}},
			{dir: "test/oracle", packages: []string{"."}, flags: []string{"-count=1", "-timeout=60m", "-v", "-worlds=" + cmp.Or(os.Getenv("WORLDS"), "2000")},
				env: []string{"CORPORA=" + corpora}},
		}},
		{name: "hubble", steps: []step{
			{packages: []string{"./common/relay"}, flags: []string{"-count=1", "-timeout=5m", "-v", "-run=^TestKilledNode$"}},
			{dir: "test/otlp", vet: true, packages: []string{"."}},
			{dir: "test/otlp", packages: []string{"."}, flags: []string{"-count=1", "-timeout=5m", "-v"}},
			{packages: []string{"./test/cluster"}, flags: []string{"-count=1", "-timeout=20m", "-v", "-run=^TestHubble$"}, env: []string{"ISTHMUS_HUBBLE=1"}},
		}},
		{name: "page", steps: []step{
			{packages: []string{"./test/page"}, flags: []string{"-count=1", "-timeout=20m", "-v"},
				env: []string{"ISTHMUS_PAGE=1", "ISTHMUS_PAGE_IMAGES=" + os.Getenv("IMAGES")}},
		}},
		{name: "leaks", steps: []step{
			{packages: []string{"./common/relay/redact"}, flags: []string{"-count=1", "-timeout=20m", "-v", "-run=^TestLeaks"}, env: []string{"ISTHMUS_LEAKS=1000000"}},
		}},
		{name: "helm", steps: []step{
			{dir: "test/helm", vet: true, packages: []string{"."}},
			{dir: "test/helm", packages: []string{"."}, flags: []string{"-count=1", "-v"}},
			{dir: "deploy/images", vet: true, packages: []string{"."}},
			{dir: "deploy/images", packages: []string{"."}, flags: []string{"-count=1", "-v"}},
			{packages: []string{"./test/apiserver"}, flags: []string{"-count=1", "-v", "-run=TestDeploy"}},
		}},
	}
}

// fuzzSuites returns the suites that run for FUZZTIME.
func fuzzSuites() []suite {
	return []suite{
		{name: "fuzz", fuzz: true},
		{name: "fuzz-path", steps: []step{
			{packages: []string{"./test/path"}, flags: []string{"-count=1", "-timeout=0", "-v", "-run=^TestFuzz$|^TestCoverage$"},
				env: []string{"ISTHMUS_FUZZ_PATH=" + fuzzTime()}},
		}},
	}
}

// environment returns the variables of suites for which make installs every tool: that a test fails if one is missing,
// and where tests write reports. Up to a limit, compilers and tests collect garbage less often, which takes less time.
func environment() []string {
	return []string{
		"ISTHMUS_TOOLS=all",
		"ISTHMUS_WINDOWS_SUMMARY=" + absolute("build/windows"),
		"ISTHMUS_ATTACK_SUMMARY=" + absolute("build/attack/line"),
		"ISTHMUS_HABITS_SUMMARY=" + absolute("build/habits/line"),
		"GOGC=400", "GOMEMLIMIT=1GiB",
	}
}

// underWine returns the step that runs the Windows agent under Wine, in a cluster with Linux nodes.
func underWine() step {
	return step{packages: []string{"./test/mixed"}, flags: []string{"-count=1", "-run=^TestTranslation$"}, env: []string{"ISTHMUS_WINE=1"}}
}

// fuzzTime returns how long each fuzz test runs.
func fuzzTime() string { return cmp.Or(os.Getenv("FUZZTIME"), "1m") }

// absolute returns the path for a test, which runs in the directory of its package.
func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil { // the working directory was removed
		return path
	}
	return abs
}
