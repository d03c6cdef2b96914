# Every target prints what it does. Start with `make run` or `make test`; `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION ?= 0.1.0-dev.$(shell git describe --always --dirty 2>/dev/null || echo unknown)
# Functions begin at multiples of 16 bytes, and generated code of Kubernetes is not inlined: this saves 1.2 MiB. The
# linker may drop each map of Kubernetes that nothing uses, such as the texts of the API's documentation, and not only
# the large ones: this saves 0.3 MiB. The first dots stand for nothing or "sigs.".
GCFLAGS := ...k8s.io/...=-l -d=wrapglobalmapctl=2
LDFLAGS := -s -w -funcalign=16 -X github.com/nodelet/nodelet/config.Version=$(VERSION)
TAGS := grpcnotrace
RELEASE = cd packaging/release && go run . $(1) -root '$(CURDIR)' -version '$(VERSION)' -tags $(TAGS) \
	-gcflags '$(GCFLAGS)' -ldflags '$(LDFLAGS)'
TESTBED := go run ./test/testbed/cmd/testbed
PKGS := ./...
# Name of the testbed that the tests use: one of this clone. Runs with different names can go on at the same time.
E2E ?= e2e-$(shell printf %s '$(CURDIR)' | sha256sum | cut -c1-4)
RUN ?= ^TestLong
# Minor version of the control plane and of the kubelet in these tests, for example 1.36; empty means the newest.
KUBERNETES ?=
export NODELET_TESTBED_KUBERNETES = $(KUBERNETES)
# Where built programs and images come from: a directory or URL made by `make mirror`, and the SHA-256 of its
# SHA256SUMS.
BINARIES_URL ?=
BINARIES_SUM ?=
export NODELET_BINARIES_URL = $(BINARIES_URL)
export NODELET_BINARIES_SUM = $(BINARIES_SUM)
# Who sets up pod networks in these tests: runtime (through its own CNI configuration), or agent (nodelet).
NETWORK ?= runtime
# When tests as root fail, the logs of their testbed go to a new directory in .cache/e2e.
E2ETEST = NODELET_E2E_NAME=$(E2E) NODELET_E2E_NETWORK=$(NETWORK) NODELET_TESTBED_LOGS='$(CURDIR)/.cache/e2e' \
	go test -tags e2e -count=1 -v

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## build bin/nodelet: static, stripped, version stamped
	@echo "==> building bin/nodelet $(VERSION) (the first time: two minutes or more)"
	@CGO_ENABLED=0 go build -tags $(TAGS) -trimpath -gcflags '$(GCFLAGS)' -ldflags '$(LDFLAGS)' \
		-o bin/nodelet ./cmd/nodelet
	@size=$$(stat -c %s bin/nodelet); \
	most=$$(sed -n 's/^| Size of the program\..*≤ \([0-9]*\) |$$/\1/p' SPECIFICATION.md); \
	echo "    $$size bytes (SPECIFICATION.md promises at most $$most MiB)"; test "$$size" -le "$$((most << 20))"

.PHONY: run
run: build ## start a local cluster with nodelet as its node, and a pod; BINARIES_URL=, BINARIES_SUM= name a mirror
	@echo "==> a local cluster: $(if $(BINARIES_URL),programs from $(BINARIES_URL): under a minute and the download,the \
	first run builds four programs of Kubernetes, and says how many minutes are left; later runs take under a minute)"
	@$(TESTBED) up --name run --agent nodelet --nodelet-bin bin/nodelet --network agent --lean
	@test/run-demo run

MIRROR ?= bin/mirror
.PHONY: mirror
mirror: ## build what `make run` needs and copy it to MIRROR=directory, for BINARIES_URL on other machines
	@echo "==> programs and images of make run in $(MIRROR)"
	@$(TESTBED) mirror '$(MIRROR)'

.PHONY: standalone
standalone: build ## start a node without a cluster, and a pod that answers HTTP; DEBIAN=1 takes Debian's containerd
	@echo "==> a node without a cluster: under a minute after the download of Debian's packages"
	@$(TESTBED) standalone --name standalone --nodelet-bin bin/nodelet $(if $(DEBIAN),--debian)

.PHONY: standalone-down
standalone-down: ## stop the node of make standalone and remove everything it created
	@$(TESTBED) down --name standalone

.PHONY: down
down: ## stop the cluster of `make run` and remove everything it created
	@echo "==> stopping the local cluster"
	@$(TESTBED) down --name run

.PHONY: test
test: modules vet programs unit root ## most of what guards a change: formatting, vet, unit tests, real components

# A registry may be away for a moment: what all later steps need is downloaded first, with three attempts.
FETCH = for wait in 5 30 0; do go list -tags e2e -deps -test ./... >/dev/null && exit 0; sleep $$wait; done; exit 1
.PHONY: modules
modules: ## download the Go modules that the tests need
	@$(FETCH)
	@cd packaging/release && $(FETCH)
	@cd packaging/site && $(FETCH)

.PHONY: vet
vet: ## formatting and vet
	@echo "==> gofmt and go vet"
	@out=$$(gofmt -l *.go */) && test -z "$$out" || { echo "not gofmt'd: $$out"; exit 1; }
	@go vet -tags e2e $(PKGS)

.PHONY: unit
unit: ## unit tests, golden scripts, 100,000 simulated pods
	@echo "==> unit tests and simulation"
	@go test -timeout 40m $(PKGS)
	@RUNS=50000 go test -count=1 -timeout 3h -run '^TestSimulation$$' ./agent/plan
	@cd packaging/release && go test ./...
	@cd packaging/site && go test ./...

# The tests have time limits. What they run is built before, for that takes an hour on a slow machine.
.PHONY: programs
programs: ## build what the tests as root run: Kubernetes, containerd, images
	@echo "==> programs and images of the tests (the first run builds Kubernetes and containerd: some minutes)"
	@$(TESTBED) build

.PHONY: root
root: build programs ## tests as root on a real API server, containerd and runc; NETWORK=agent: pod networks by nodelet
	@echo "==> tests on real components (needs root)"
	@$(E2ETEST) -timeout 45m -skip '^TestLong' ./test/e2e/...

# Without one of the two variables tests would skip: the shell fails instead.
.PHONY: real
real: programs ## tests of packages on a real API server and container runtime, without an agent; needs root
	@echo "==> a control plane and containerd, and the tests of packages that need one of them (a minute)"
	@$(TESTBED) run --name $(E2E)-real -- sh -c 'NODELET_TEST_KUBECONFIG=$${KUBECONFIG:?} \
		NODELET_TEST_CRI=$${CONTAINER_RUNTIME_ENDPOINT:?} exec \
		go test -count=1 -run "Real|Conformance" ./kube/node ./kube/objects ./kube/pods ./kube/status ./cri'

.PHONY: race
race: ## unit tests and tests as root with Go's race detector, also in the agent; needs a C compiler
	@echo "==> unit tests with the race detector (about half an hour)"
	@CGO_ENABLED=1 go test -race -timeout 90m $(PKGS)
	@$(MAKE) --no-print-directory race-root

RACE = $(CURDIR)/bin/race
.PHONY: race-root
race-root: programs ## the part of make race that needs root
	@echo "==> tests on real components with the race detector; reports of the agent go to bin/race"
	@mkdir -p '$(RACE)' && rm -f '$(RACE)'/report.*
	@CGO_ENABLED=1 go build -race -tags $(TAGS) -ldflags '$(LDFLAGS)' -o '$(RACE)/nodelet' ./cmd/nodelet
	@CGO_ENABLED=1 GORACE='log_path=$(RACE)/report' NODELET_E2E_PROGRAM='$(RACE)/nodelet' \
		$(E2ETEST) -race -timeout 80m -skip '^TestLong' ./test/e2e/...
	@! grep -h . '$(RACE)'/report.* 2>/dev/null

.PHONY: e2e
e2e: build programs ## long tests on real components; RUN=regexp selects tests
	@echo "==> long tests on real components: $(RUN)"
	@$(E2ETEST) -timeout 80m -run '$(RUN)' ./test/e2e/...

CRIOTESTS = ^(TestEverything|TestKubectlLogsExec|TestRestartPolicy|TestAgentKilled|TestRuntimeKilled|TestStaticPod)$$
.PHONY: crio
crio: build ## some of the tests as root on CRI-O instead of containerd; the first run builds CRI-O: ten minutes
	@echo "==> tests on CRI-O (the first run builds it: about ten minutes)"
	@$(TESTBED) build --runtime crio
	@NODELET_E2E_RUNTIME=crio $(E2ETEST) -timeout 20m -run '$(CRIOTESTS)' ./test/e2e/...

.PHONY: conformance
conformance: build ## the upstream suite; AGENT=kubelet, SUITE=, FOCUS=, SKIP=, LABEL=; ARGS=-help lists more
	@echo "==> the Kubernetes test suite (the first run builds it: some minutes)"
	@go run ./test/conformance $(ARGS)

.PHONY: node-e2e
node-e2e: build ## the upstream suite for one node, which also restarts the agent; the same variables
	@echo "==> the Kubernetes node test suite (the first run builds it: some minutes)"
	@go run ./test/conformance -node -name node$(if $(filter kubelet,$(AGENT)),k) $(ARGS)

.PHONY: certify
certify: ## check the results of a conformance run by hydrophone for certification; DIR=…/vX.Y/PRODUCT
	@go run ./test/certify '$(DIR)'

REQUESTS ?= 100000
.PHONY: managers
managers: ## compare CPU, memory and topology policies with the kubelet's on 37 machine shapes; REQUESTS=100000 pods
	@echo "==> comparing policies with the kubelet's code, $(REQUESTS) pods (the first run compiles it: some minutes)"
	@cd test/managers && go test -count=1 -timeout 60m -v -args -requests $(REQUESTS)

.PHONY: differential
differential: build ## run the same pods on both agents and compare; ONLY=pattern, or random ones: PODS=40 SEED=1
	@echo "==> differential test (about 15 minutes)"
	@go run ./test/differential $(if $(PODS),-random $(PODS) -seed $(or $(SEED),1))

.PHONY: load
load: ## 200 concurrent execs and 500 followed logs for a minute, and the memory they leave in use
	@$(MAKE) --no-print-directory e2e RUN='^TestLongLoad$$'

.PHONY: hostile
hostile: ## probes and starts of pods beside floods of execs, logs and ConfigMap updates, compared with an idle node
	@$(MAKE) --no-print-directory e2e RUN='^TestLongHostile'

DURATION ?= 1h
# The seed of the soak test; 0 takes one from the clock.
SEED ?= 0
# single, dense, lanes or kill.
PROFILE ?= single
.PHONY: soak
soak: build ## pods come and go beside faults of all kinds; DURATION=1h, SEED=, PROFILE=, ONLY=faults, NETWORK=agent
	@echo "==> soak test for $(DURATION) (one line a round; go run ./test/soak -list prints the faults)"
	@go run ./test/soak -duration $(DURATION) -seed $(SEED) -profile $(PROFILE) -network $(NETWORK) -only '$(ONLY)' \
		-record bin/soak.jsonl

.PHONY: reference
reference: ## compare the tables of gates, flags, defaults, verdicts, metrics with the kubelet's; UPDATE=1 rewrites them
	@echo "==> the kubelet's own tables (the first run compiles the kubelet: some minutes)"
	@cd test/testbed/modules/kubernetes && CGO_ENABLED=0 go test -mod=readonly -trimpath -count=1 ./reference \
		$(if $(UPDATE),-args -update)

.PHONY: bench
bench: build ## compare nodelet with the kubelet and the bare runtime, in one run
	@echo "==> benchmark: runtime floor, kubelet, nodelet (about 15 minutes)"
	@go run ./test/bench

.PHONY: bench-throughput
bench-throughput: build ## as many pods a second as go, and two a second: bare runtime, null agent, kubelet, nodelet
	@echo "==> benchmark of throughput: runtime floor, null agent, kubelet, nodelet (about 12 minutes)"
	@go run ./test/bench -throughput -rounds 1 -sides null,kubelet,nodelet

.PHONY: bench-network
bench-network: build ## cost of a pod's network: CNI plugins alone, and through nodelet
	@echo "==> ADD and DEL of one pod and of ten at once; medians (about a minute)"
	@go test -run '^$$' -bench '^BenchmarkCost$$' -benchtime 1x ./cni

.PHONY: bench-storage
bench-storage: build ## time until volumes are ready, with nodelet and with the kubelet, in one run
	@echo "==> benchmark of volumes: kubelet, nodelet (some minutes)"
	@go run ./test/bench -storage -rounds 3

.PHONY: bench-probes
bench-probes: build ## 110 pods with three probes each: CPU, memory and pod starts, with nodelet and with the kubelet
	@echo "==> benchmark of probes: kubelet, nodelet (about 10 minutes)"
	@go run ./test/bench -probes -rounds 1 -rest 90s

.PHONY: bench-density
bench-density: build ## 250, 500 and 1,000 pods on one node: memory, CPU, one more pod, restart; DENSITY=numbers
	@echo "==> benchmark of many pods on one node: nodelet (about 30 minutes, and 10 GiB of memory for 1,000 pods)"
	@go run ./test/bench -density $(or $(DENSITY),250,500,1000) -sides nodelet -rounds 1 -single 10

.PHONY: spec
spec: build ## check each promise of SPECIFICATION.md in a run of all benchmarks; wants a quiet machine
	@echo "==> all benchmarks: floor, null agent, kubelet, nodelet (about 50 minutes)"
	@mkdir -p bin/spec
	@go run ./test/bench -json bin/spec/pods.json
	@go run ./test/bench -throughput -rounds 1 -sides null,kubelet,nodelet -json bin/spec/throughput.json
	@go run ./test/bench -storage -rounds 3 -json bin/spec/storage.json
	@go run ./test/bench -probes -rounds 1 -rest 90s -json bin/spec/probes.json
	@go run ./test/bench/spec bin/spec/*.json

.PHONY: performance
performance: ## keep the records of the last `make spec`, if any, and write docs/performance.md from all that are kept
	@echo "==> bin/spec -> docs/performance, docs/performance.md"
	@mkdir -p docs/performance
	@for f in $(wildcard bin/spec/*.json); do cp "$$f" "docs/performance/$$(git log -1 --format=%cs-%h)-$${f##*/}"; done
	@go run ./test/bench/spec -page docs/performance.md docs/performance/*.json

.PHONY: deb
deb: build ## build the Debian packages bin/nodelet.deb and bin/nodelet-kubelet.deb (nodelet as the kubelet)
	@echo "==> building bin/nodelet.deb and bin/nodelet-kubelet.deb"
	@$(call RELEASE,deb) -out '$(CURDIR)/bin' -program '$(CURDIR)/bin/nodelet' \
		-epoch $$(git log -1 --format=%ct 2>/dev/null || echo 0)
	@ls -l bin/*.deb | awk '{printf "    %s bytes %s\n", $$5, $$9}'

ARCH ?= amd64,arm64,riscv64,s390x
OUT ?= dist
.PHONY: release
release: ## build all artefacts of a release twice and compare; ARCH=amd64,arm64,riscv64,s390x, OUT=dist, SIGN_KEY=file
	@echo "==> a release of $(VERSION) for $(ARCH), built twice: 18 minutes of CPU time for all"
	@$(call RELEASE,all) -out '$(abspath $(OUT))' -arch '$(ARCH)' -sign-key '$(if $(SIGN_KEY),$(abspath $(SIGN_KEY)))'
	@ls -l $(OUT) | awk 'NR>1 {printf "    %s bytes %s\n", $$5, $$9}'

.PHONY: release-test
release-test: deb ## test the tool of make release with dpkg, rpm, skopeo and OpenSSL, and the packages with lintian
	@echo "==> formats, licenses, SBOM, signatures; lintian"
	@cd packaging/release && go vet ./... && NODELET_TEST_PROGRAMS=1 go test -count=1 ./...
	@lintian --allow-root --fail-on error,warning bin/nodelet.deb bin/nodelet-kubelet.deb

.PHONY: site
site: ## make a site of all pages, with search, in bin/site; it checks all links
	@echo "==> bin/site/index.html"
	@rm -rf bin/site
	@cd packaging/site && go run . -root '$(CURDIR)' -out '$(CURDIR)/bin/site'

.PHONY: emulate
emulate: ## run nodelet and unit tests for other architectures under QEMU; EMULATE="arm64 riscv64 s390x"
	@test/emulate $(or $(EMULATE),arm64)

.PHONY: vuln
vuln: ## look for known vulnerabilities in what nodelet calls (at https://vuln.go.dev, or VULNDB=file:///directory)
	@echo "==> govulncheck"
	@go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 $(if $(VULNDB),-db '$(VULNDB)') -tags $(TAGS) ./cmd/nodelet

.PHONY: vm
vm: deb ## test the package in a virtual machine: service, watchdog, reboot, power cut, takeover from the kubelet
	@echo "==> a virtual machine (the first run fetches Debian and builds its disk: some minutes)"
	@go run ./test/vm -deb bin/nodelet.deb

.PHONY: vm-storage
vm-storage: deb ## test NFS and iSCSI volumes in a virtual machine that is also their server: crash, power cut
	@echo "==> a virtual machine (the first run fetches Debian and builds its disk: some minutes)"
	@go run ./test/vm -deb bin/nodelet.deb -storage

.PHONY: vm2
vm2: deb ## a node on cgroup v2, in User-Mode Linux; T=root, conformance, node-e2e, differential, kubeadm
	@echo "==> a machine of User-Mode Linux (the first time builds its kernel and its disk: about 15 minutes)"
	@go run ./test/vm -deb bin/nodelet.deb $(if $(filter kubeadm,$(T)),-kubeadm -machine uml,$(if $(T),-inside $(T) -- \
		$(if $(filter root,$(T)),$(ROOT_ARGS)),-v2))

# The arguments of T=root. Without TESTS= two machines run at the same time, because one runs one thread of a process at
# a time: the first runs the tests of ROOT_APART, which take as long as the others together.
ROOT_APART := ^Test(Deployment|Everything|APIServerAway)
ROOT_SKIP = $(or $(SKIP),^TestLong)
ROOT_ARGS = $(if $(TESTS),-test.run '$(TESTS)' -test.skip '$(ROOT_SKIP)' $(ARGS),-test.run '$(ROOT_APART)' \
	-test.skip '$(ROOT_SKIP)' $(ARGS) -- -test.skip '$(ROOT_SKIP)|$(ROOT_APART)' $(ARGS))

.PHONY: rollout
rollout: deb ## run the commands of docs/rollout.md in the machine of vm2, on a node that a real kubelet runs
	@echo "==> the rollout guide in User-Mode Linux (the first time builds its kernel and its disk: about 15 minutes)"
	@go run ./test/vm -deb bin/nodelet.deb -rollout

.PHONY: fleet
fleet: deb ## test the script and the Ansible role of packaging/rollout on a cluster of two machines made of namespaces
	@echo "==> a cluster of kubeadm, ssh and Ansible (the first run builds a disk, kubeadm and etcd: some minutes)"
	@go run ./test/vm -deb bin/nodelet.deb -fleet

.PHONY: kubeadm
kubeadm: deb ## test kubeadm with nodelet as the kubelet: init, join, upgrade, reset, on two machines made of namespaces
	@echo "==> two machines and kubeadm (the first run builds kubeadm and etcd: some minutes)"
	@go run ./test/vm -deb bin/nodelet.deb -kubeadm

.PHONY: kind
kind: deb ## test clusters made by kind: nodelet as an additional node, and as the kubelet of the node image
	@echo "==> kind (the first run builds its node image: some minutes)"
	@go run ./test/kind -nodelet bin/nodelet -deb bin/nodelet.deb

FUZZTIME ?= 20s
.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME=20s
	@test/fuzz-all $(FUZZTIME)

.PHONY: mutants
mutants: ## take each security rule out of the code and check that its test fails
	@echo "==> mutants of the rules in docs/security.md (about 10 minutes)"
	@go run ./test/mutants

.PHONY: clean
clean: ## remove build output
	@rm -rf bin
