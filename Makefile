# SPDX-License-Identifier: Apache-2.0
#
# 'make help' lists the targets. Logic that Go can do is in Go.

.DELETE_ON_ERROR:
.SUFFIXES:

# A Go that is new enough; found, or fetched, by .ci/deps. Tools that call go by
# its name find the same one.
GO = $(shell .ci/deps 2>/dev/null | tail -n 1)
usable = $(or $(GO),$(error no usable Go: run 'sudo make deps'))
path = PATH="$(patsubst %/,%,$(dir $(usable))):$$PATH"
go = $(path) $(usable)

# The version is stamped below; git refuses to tell root about others' checkouts. Paths are trimmed and C is off, as in
# released commands. So builds and tests of every checkout share one cache.
export GOFLAGS += -buildvcs=false -trimpath
export CGO_ENABLED = 0
VERSION ?= $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)
ldflags = -s -w -X main.version=$(VERSION)
binaries = isthmus-agent isthmus-cni isthmusctl isthmus-controller isthmus-relay

source = bpf cmd cni common deploy linux windows test
generated = linux/bpfobj common/api test/bench/floor

# The directory that make demo takes manifests from; KEEP=1 leaves it running.
MANIFESTS ?= deploy/examples
KEEP ?=

# If Wine is installed, make demo runs the executables for Windows on its Windows
# node, unless WINE=0; make mixed does so with WINE=1.
WINE ?=

# More flags of make e2e, see build/e2e-lab -h. IP is the IP versions of its cluster: 4, 6 or dual. Beside flannel, in mode
# policy: E2E="-network flannel -suites netpol,conformance,own,again". The cases of sig-network beyond conformance:
# E2E="-suites network".
E2E ?=
IP ?= 4
NODES ?= 2

# test/run/suites.go holds what each suite of tests runs. It reads these variables:
# how long each fuzz test runs (default 1m), how many random clusters of each form
# make oracle makes (default 2000), how many operations make churn does (default
# 5000), and the directory of public test data.
FUZZTIME ?=
WORLDS ?=
OPERATIONS ?=
CORPORA ?=
export FUZZTIME WORLDS OPERATIONS CORPORA WINE
run = $(path) $(usable) run ./test/run

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: deps
deps: ## Install what is missing on Debian 12 (needs root)
	@.ci/deps

.PHONY: deps-e2e
deps-e2e: ## Install what the nodes of make e2e need on Debian 12 (needs root)
	@.ci/deps bind9-dnsutils bind9-host busybox-static conntrack containerd containernetworking-plugins curl iptables netcat-openbsd nftables procps runc >/dev/null

.PHONY: deps-windows
deps-windows: ## Install Wine and a compiler for Windows on Debian 12 (needs root)
	@.ci/deps-windows

.PHONY: deps-kubernetes
deps-kubernetes: ## Build kube-apiserver and etcd for test-api into a cache (once; some minutes)
	@$(path) $(usable) run ./test/kubernetes/build kube-apiserver etcd

.PHONY: gen
gen: ## Regenerate the BPF objects and the gRPC code (needs clang-19 and protoc)
	BPF2GO_CFLAGS="-I/usr/include/$$(gcc -print-multiarch)" $(go) generate ./linux/bpfobj ./test/bench/floor
	cd common/api && protoc --plugin=protoc-gen-go="$$($(go) tool -n protoc-gen-go)" \
		--plugin=protoc-gen-go-grpc="$$($(go) tool -n protoc-gen-go-grpc)" \
		--go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative isthmus/v1/inspect.proto
	cd common/api/hubble && protoc --plugin=protoc-gen-go="$$($(go) tool -n protoc-gen-go)" \
		--plugin=protoc-gen-go-grpc="$$($(go) tool -n protoc-gen-go-grpc)" \
		--go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative \
		flow/flow.proto relay/relay.proto observer/observer.proto peer/peer.proto

.PHONY: build
build: ## Build the commands for Linux and Windows into bin/
	@set -e; for b in $(binaries); do \
		GOOS=linux $(go) build -ldflags "$(ldflags)" -o bin/linux/$$b ./cmd/$$b; \
		GOOS=windows GOARCH=amd64 $(go) build -ldflags "$(ldflags)" -o bin/windows/$$b.exe ./cmd/$$b; \
	done

.PHONY: conformance
conformance: ## Build the programs that test a Windows host and what Isthmus assumes about it, into bin/windows/
	@set -e; for b in conformance smoke; do \
		GOOS=windows GOARCH=amd64 $(go) build -ldflags "$(ldflags)" -o bin/windows/isthmus-$$b.exe ./test/$$b; \
	done

.PHONY: images
images: ## Write container images for Linux and Windows into build/images, without a daemon
	@rm -rf build/images
	@set -e; for p in linux-amd64 linux-arm64 windows-amd64; do for b in $(binaries); do \
		GOOS=$${p%-*} GOARCH=$${p#*-} $(go) build -ldflags "$(ldflags)" \
			-o build/images/$$p/$$b$$(test $${p%-*} = windows && echo .exe || true) ./cmd/$$b; \
	done; done
	@cd deploy/release && GOFLAGS= $(go) run . -licences-only "$(CURDIR)/build/images"
	@cd deploy/images && $(go) run . -version "$(VERSION)" -bin ../../build/images -o ../../build/images
	@echo 'build/images has the images with the tag $(VERSION): helm install ... --set image.tag=$(VERSION)'

# A release: its files are in build/release/VERSION. SIGNING_KEY is a file, see docs/releases.md.
SIGNING_KEY ?=
ALLOW_DIRTY ?=
release = cd deploy/release && SIGNING_KEY="$(SIGNING_KEY)" GOFLAGS= $(go) run . -version "$(VERSION)"

.PHONY: release
release: ## Write the files of a release into build/release/VERSION (VERSION=0.2.0 SIGNING_KEY=file ALLOW_DIRTY=1)
	@$(release) -o "$(CURDIR)/build/release/$(VERSION)" $(if $(ALLOW_DIRTY),-allow-dirty)

.PHONY: release-test
release-test: ## Test the builders of images and of releases
	@$(run) release

.PHONY: release-check
release-check: ## Build the release VERSION of the commit twice, without caches, and compare every byte (an hour of CPU on two cores)
	@$(release) -o "$(CURDIR)/build/release/$(VERSION)" -check

.PHONY: manifests
manifests: ## Render deploy/isthmus*.yaml from the chart
	@cd test/helm && $(go) test -count=1 -run Rendered . -update

.PHONY: helm-test
helm-test: deps-kubernetes ## Images; lint the chart, compare what it renders, and have a real API server check it (the first time it builds them)
	@$(run) helm

.PHONY: vet
vet: ## Format, vet for three systems, staticcheck; tests for Windows compile
	@unformatted="$$($(dir $(usable))gofmt -l $(source))"; test -z "$$unformatted" || { echo "run gofmt -w on:" $$unformatted; exit 1; }
	GOOS=linux $(go) vet ./...
	GOOS=windows $(go) vet ./...
	GOOS=darwin $(go) vet ./...
	$(go) tool staticcheck ./...
	GOOS=windows $(path) $$($(go) tool -n staticcheck) ./...
	GOOS=windows $(go) list -test -export ./... >/dev/null # compiles, does not link

# Not part of test: a machine without build cache compiles golangci-lint for minutes.
.PHONY: lint
lint: vet ## vet, then golangci-lint (the first time it builds it: some minutes)
	@set -e; linter="$$($(go) -C test/lint tool -n golangci-lint)"; for system in linux windows; do \
		echo "golangci-lint run, for $$system"; GOOS=$$system $(path) "$$linter" run ./...; done

.PHONY: workflows
workflows: ## Check the workflows under .github with actionlint (the first time it builds it)
	@linter="$$($(go) -C test/tools tool -n actionlint)" && "$$linter" && echo "actionlint: $$(ls .github/workflows/*.yaml | wc -l) workflows, no findings"

.PHONY: docs-site
docs-site: ## Build the web site of the documents into build/site, and check its links (needs root once, for Hugo)
	@command -v hugo >/dev/null || .ci/deps hugo >/dev/null
	@$(go) run ./test/site -o build/site

.PHONY: check
check: lint workflows ## lint, workflows, then tests that need no root
	@$(run) check

.PHONY: test-race
test-race: ## Tests of what is concurrent under the race detector (needs a C compiler; stops after five minutes a package)
	@$(run) race

.PHONY: gen-check
gen-check:
	@clang-format-19 --dry-run --Werror bpf/*.c bpf/include/*.h || { echo "run clang-format-19 -i on these files"; exit 1; }
	@rm -rf build/generated && mkdir -p build/generated && cp -r --parents $(generated) build/generated
	@$(MAKE) --no-print-directory gen
	@for d in $(generated); do diff -r build/generated/$$d $$d || { echo "generated code is not up to date: run make gen and commit it"; exit 1; }; done
	@rm -rf build/generated

.PHONY: test
test: deps deps-windows ## Everything but the API server: generated code is up to date, vet, all tests, the commands for Windows under Wine (needs root)
	@$(MAKE) --no-print-directory gen-check
	@$(MAKE) --no-print-directory vet
	@$(run) test

.PHONY: test-attack
test-attack: deps ## Packets that policy denies, made as an attacker would, over every device and both kinds of hooks (needs root; two minutes)
	@$(run) attack

.PHONY: test-alerts
test-alerts: deps-kubernetes deps ## Alerts by promtool, the dashboard by Grafana's schema and on a Prometheus that scrapes two nodes, and each runbook on a broken cluster (needs root; ten minutes; the first time it builds kube-apiserver)
	@.ci/deps prometheus >/dev/null
	@$(run) alerts

.PHONY: test-beside
test-beside: deps deps-windows ## Policy beside other networks: bridge, ptp, flannel, aws-cni, azure-vnet, and those of Windows under Wine, built from their modules, under cases of the corpus (needs root; fifteen minutes)
	@.ci/deps iptables >/dev/null
	@$(run) beside

.PHONY: test-migrate
test-migrate: deps ## Two nodes with the bridge plugin, flannel (host-gw, VXLAN) and kubenet, migrated to mode full and back under traffic (needs root; six minutes)
	@.ci/deps iptables >/dev/null
	@$(run) migrate

.PHONY: churn
churn: ## 5,000 operations of pods and policies on emulated Windows nodes under every fault of HNS (two minutes; OPERATIONS=n)
	@$(run) churn

.PHONY: mixed
mixed: ## Two eBPF nodes and two emulated Windows nodes under the corpus, overlay and bridged, by real packets (some minutes; needs root; WINE=1)
	@$(run) mixed

.PHONY: test-api
test-api: deps-kubernetes deps-windows ## Against a real kube-apiserver, etcd and kube-proxy (needs root for its nodes; the first time it builds them)
	@.ci/deps iptables nftables >/dev/null
	@$(path) $(usable) run ./test/kubernetes/build kube-proxy kube-proxy.exe
	@$(run) api

.PHONY: e2e
e2e: deps deps-e2e deps-windows images ## Kubernetes' own tests on a real cluster on this machine (IP=6 or dual, NODES=3; needs root, 4 GB; the first time it builds Kubernetes)
	@$(go) build -o build/e2e-lab ./test/e2e && $(path) build/e2e-lab -ip $(IP) -nodes $(NODES) $(E2E)

.PHONY: cnp-conformance
cnp-conformance: deps deps-e2e images ## The conformance tests of ClusterNetworkPolicy on such a cluster; the report is build/cnp/cnp-report.yaml (needs root)
	@$(go) build -o build/e2e-lab ./test/e2e && $(path) build/e2e-lab -ip $(IP) -nodes $(NODES) -report build/cnp -suites cnp $(E2E)

# More flags of make cluster, see build/e2e-lab cluster -h.
CLUSTER ?=

.PHONY: cluster
cluster: began := $(shell date +%s)
cluster: deps deps-e2e images ## Run Kubernetes with Isthmus on this machine until make cluster-stop (needs root, 4 GB; docs/quickstart.md)
	@$(go) build -o build/e2e-lab ./test/e2e && $(path) build/e2e-lab cluster up -began $(began) $(CLUSTER)

.PHONY: cluster-stop
cluster-stop: ## Remove what make cluster made (needs root)
	@$(go) build -o build/e2e-lab ./test/e2e && build/e2e-lab cluster stop $(CLUSTER)

.PHONY: test-cluster
test-cluster: ## Run the commands of docs/quickstart.md, with a real cluster (needs root, 4 GB; the first time it builds Kubernetes)
	@$(run) cluster

.PHONY: test-windows
test-windows: deps deps-windows ## The commands for Windows, under Wine over an emulated HNS (needs root)
	@$(run) windows

.PHONY: test-kernel
test-kernel: ## Run the data path's tests on Debian's 6.1 and 6.12 kernels in QEMU, without KVM (hours on two cores; ARCH=arm64 for 6.12 of arm64, KERNELS=package, SUITES=programs,loader)
	@.ci/deps cpio $(if $(filter arm64,$(ARCH)),qemu-system-arm,qemu-system-x86) xz-utils >/dev/null
	@$(go) run ./test/kernel -arch $(or $(ARCH),amd64) -kernels "$(KERNELS)" -suites "$(SUITES)"

.PHONY: test-continuity
test-continuity: ## 100,000 packets/s and 200 connections over 20 agent restarts and 5 program replacements (needs root)
	@$(run) continuity

.PHONY: corpora
corpora: ## Compare with public test data, real clusters' manifests and verdicts (CORPORA=dir)
	@$(run) corpora

.PHONY: oracle
oracle: ## Compare with policy engines of others over random clusters, and over CORPORA=dir (two minutes)
	@$(run) oracle

.PHONY: test-hubble
test-hubble: ## Read flows of agents with the command of Hubble, and compare them with the reference evaluator (needs root; builds the command)
	@$(run) hubble

.PHONY: test-page
test-page: deps ## The web pages in Chromium: keyboard, no JavaScript, axe, 10,000 pods (needs root for packages and the network for npm; IMAGES=1 writes docs/images)
	@.ci/deps chromium fonts-dejavu-core >/dev/null
	@command -v npm >/dev/null || .ci/deps nodejs npm >/dev/null
	@$(run) page

.PHONY: test-leaks
test-leaks: ## Show a million generated flows, and 100,000 explanations and numbers, to clients of one namespace; nothing else may be seen
	@$(run) leaks

# Which mutants make mutants plants: ids and areas, separated by commas; all
# without it. MUTANTS are more flags, see build/mutants -h.
ONLY ?=
MUTANTS ?=

.PHONY: mutants
mutants: ## Plant a list of mistakes, one at a time, and run the tests that must notice (hours; ONLY=id,area; root for some)
	@mkdir -p build && $(go) build -o build/mutants ./test/mutants && $(path) build/mutants -only "$(ONLY)" $(MUTANTS)

.PHONY: fuzz
fuzz: ## Every fuzz test of the tree, FUZZTIME each (default 1m)
	@$(run) fuzz

.PHONY: fuzz-path
fuzz-path: ## Random sequences of packets through the programs, compared with a reference, for FUZZTIME (needs root; ISTHMUS_FUZZ_SEED=n)
	@$(run) fuzz-path

.PHONY: demo
demo: deps ## A cluster of two Linux nodes and a Windows node on this machine (needs root; MANIFESTS=dir KEEP=1 WINE=0 OVERLAY=1)
	@$(go) run ./test/cluster/demo -manifests "$(MANIFESTS)" $(if $(KEEP),-keep) $(if $(filter 0,$(WINE)),-no-wine) $(if $(OVERLAY),-overlay)

.PHONY: demo-stop
demo-stop: ## Remove a demo that was left running with KEEP=1
	@$(go) run ./test/cluster/demo -stop

.PHONY: bench
bench: ## Benchmarks of the compiler and the data path, one JSON line each
	$(go) test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-policy
bench-policy: ## The compiler over 100,000 pods and 2,000 policies, one JSON line per figure with its goal
	@$(go) run ./test/bench

.PHONY: bench-analysis
bench-analysis: ## isthmusctl over 5,000 pods and 1,000 policies, one JSON line per figure with its goal (minutes)
	@$(path) $(usable) run ./test/bench/analysis

.PHONY: bench-windows
bench-windows: ## Writes to HNS while 1,000 pods come and go, one JSON line per figure with its goal (minutes)
	@$(go) run ./test/bench/hns

.PHONY: bench-datapath
bench-datapath: deps-kubernetes ## Programs, growth and paths between pods beside floors and nftables, between nodes, and beside other CNI plugins, in one run; then bench-maps (needs root; the first time it builds kube-apiserver)
	@mkdir -p build
	@$(go) run ./test/bench/datapath -json build/bench-datapath.json -plot build/bench-datapath.svg
	@$(MAKE) --no-print-directory bench-maps

.PHONY: bench-observe
bench-observe: ## What flow events cost programs and agent, and a SYN flood with 16 readers: JSON lines with goals; fails if one is missed (needs root; twelve minutes)
	@status=0; $(go) run ./test/bench/datapath -parts events -strict -json - || status=1; \
		$(path) $(usable) run ./test/bench/observe || status=1; exit $$status

.PHONY: bench-maps
bench-maps: ## Map writes of an edit, memory of the maps, attachment of a pod, beside their goals (needs root)
	@$(go) run ./test/bench/maps

.PHONY: bench-node
bench-node: deps-kubernetes ## An agent that follows 10,000 pods, 1,000 nodes and 1,000 policies through a real API server; pods attached beside bridge and host-local (needs root)
	@.ci/deps containernetworking-plugins >/dev/null
	@$(path) $(usable) run ./test/bench/node

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin build
