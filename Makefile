# Every target prints what it does. Start with `make run` or `make test`; `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION ?= 0.1.0-dev.$(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/nodelet/nodelet/config.Version=$(VERSION)
TESTBED := go run ./test/testbed/cmd/testbed
PKGS := ./...
# The testbed of the tests on real parts; another name lets two runs go on beside each other.
E2E ?= e2e
RUN ?= ^TestLong
# Who is the pods' network in these tests: runtime, or agent for nodelet.
NETWORK ?= runtime

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## build bin/nodelet: static, stripped, version stamped
	@echo "==> building bin/nodelet $(VERSION)"
	@CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags '$(LDFLAGS)' -o bin/nodelet ./cmd/nodelet
	@ls -l bin/nodelet | awk '{printf "    %s bytes\n", $$5}'

.PHONY: run
run: build ## a real local cluster with nodelet as its node and a pod running; leaves it up, `make down` ends it
	@echo "==> starting a local cluster (the first time builds Kubernetes and containerd: some minutes)"
	@$(TESTBED) up --name run --agent nodelet --nodelet-bin bin/nodelet --network agent
	@test/run-demo run

.PHONY: down
down: ## end the cluster of `make run` and all that belongs to it
	@echo "==> ending the local cluster"
	@$(TESTBED) down --name run

.PHONY: test
test: vet unit root ## everything that guards a change: formatting, imports, unit tests, simulation, tests on real parts

.PHONY: vet
vet: ## formatting and vet
	@echo "==> gofmt and go vet"
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "not gofmt'd: $$out"; exit 1; }
	@go vet $(PKGS)

.PHONY: unit
unit: ## unit tests, golden scripts, 100,000 simulated pod lives
	@echo "==> unit tests and simulation"
	@go test $(PKGS)

.PHONY: root
root: build ## tests as root on a real API server, containerd and runc; NETWORK=agent with nodelet as the network
	@echo "==> tests on real parts (needs root; the first time builds Kubernetes and containerd: some minutes)"
	@$(TESTBED) down --name $(E2E) 2>/dev/null # what an interrupted run has left
	@NODELET_E2E_NAME=$(E2E) NODELET_E2E_NETWORK=$(NETWORK) go test -tags e2e -count=1 -timeout 45m -v -skip '^TestLong' ./test/e2e/...

.PHONY: e2e
e2e: build ## the long tests on real parts and partners; RUN=regexp chooses among all of them
	@echo "==> long tests on real parts: $(RUN)"
	@$(TESTBED) down --name $(E2E) 2>/dev/null # what an interrupted run has left
	@NODELET_E2E_NAME=$(E2E) NODELET_E2E_NETWORK=$(NETWORK) go test -tags e2e -count=1 -timeout 80m -v -run '$(RUN)' ./test/e2e/...

.PHONY: conformance
conformance: build ## Kubernetes' own node tests; AGENT=kubelet, FOCUS=, SKIP= and LABEL= choose others
	@echo "==> Kubernetes' own test suite (the first time builds it: some minutes)"
	@go run ./test/conformance

.PHONY: differential
differential: build ## the same pods on the kubelet and on nodelet, compared; ONLY=pattern chooses some
	@echo "==> differential test (about 15 minutes)"
	@go run ./test/differential

.PHONY: load
load: ## 200 execs at once and 500 followed logs for a minute, and what they leave in memory
	@$(MAKE) --no-print-directory e2e RUN='^TestLongLoad$$'

DURATION ?= 1h
SEED ?= 0
.PHONY: soak
soak: build ## pods come and go beside faults of all kinds; DURATION=1h, SEED=0 (from the clock), ONLY=faults, by name
	@echo "==> soak test for $(DURATION) (one line a round; go run ./test/soak -list prints the faults)"
	@go run ./test/soak -duration $(DURATION) -seed $(SEED) -only '$(ONLY)' -out bin/soak.json

.PHONY: bench
bench: build ## nodelet beside the kubelet and the bare runtime, in one run
	@echo "==> benchmark: runtime floor, kubelet, nodelet (about 15 minutes)"
	@go run ./test/bench

.PHONY: bench-network
bench-network: build ## what a pod's network costs: the plugins by themselves, and through nodelet
	@echo "==> ADD and DEL of one pod and of ten at once, in turns; medians (about a minute)"
	@go test -run '^$$' -bench '^BenchmarkCost$$' -benchtime 1x ./cni

.PHONY: bench-storage
bench-storage: build ## how soon volumes are ready, with nodelet and with the kubelet, in one run
	@echo "==> benchmark of volumes: kubelet, nodelet (some minutes)"
	@go run ./test/bench -storage -rounds 3

.PHONY: bench-probes
bench-probes: build ## 110 pods of three probes each: CPU and memory at rest, and starts beside them, nodelet beside the kubelet
	@echo "==> benchmark of probes: kubelet, nodelet (about 10 minutes)"
	@go run ./test/bench -probes -rounds 1 -rest 90s

.PHONY: deb
deb: build ## bin/nodelet.deb: program, unit, configuration, man page; bin/nodelet-kubelet.deb: it as the kubelet
	@echo "==> building bin/nodelet.deb and bin/nodelet-kubelet.deb"
	@packaging/build-deb '$(subst -,~,$(VERSION))' bin/nodelet.deb
	@ls -l bin/*.deb | awk '{printf "    %s bytes %s\n", $$5, $$9}'

.PHONY: vm
vm: deb ## the package in a booted Debian machine: service, watchdog, reboot, power cut, changing hands with the kubelet
	@echo "==> a virtual machine (the first time fetches Debian and builds its disk: some minutes)"
	@go run ./test/vm -deb bin/nodelet.deb

.PHONY: vm-storage
vm-storage: deb ## pods with volumes of nfs and iscsi in a booted Debian machine that is also their server: data, sharing, crash, power cut
	@echo "==> a virtual machine (the first time fetches Debian and builds its disk: some minutes)"
	@go run ./test/vm -deb bin/nodelet.deb -storage

.PHONY: kubeadm
kubeadm: deb ## kubeadm with nodelet as the kubelet: init, join, upgrade, reset, on two machines of namespaces
	@echo "==> two machines and kubeadm (the first time builds kubeadm and etcd: some minutes)"
	@go run ./test/vm -deb bin/nodelet.deb -kubeadm

.PHONY: kind
kind: deb ## clusters made by kind: nodelet joins one as an extra node, and is the kubelet of another's node image
	@echo "==> kind (the first time builds its node image: some minutes)"
	@go run ./test/kind -nodelet bin/nodelet -deb bin/nodelet.deb

.PHONY: fuzz
fuzz: ## each fuzz target for 20 s
	@test/fuzz-all 20s

.PHONY: clean
clean: ## remove what was built here
	@rm -rf bin
