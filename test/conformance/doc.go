// Command conformance runs Kubernetes' own test suite against a node agent in a testbed and compares the result with
// known.txt, the list of specs that may fail. It also keeps the results of runs in results/, and makes the matrix in
// docs/conformance.md of them.
//
// While it runs it owns a testbed, and a directory for its reports. It has no checks of its own; the suite has them.
// `make conformance` calls it. A crash leaves the testbed up; the next run removes it, or "testbed down" with
// NODELET_TESTBED_STATE set to stateRoot in main.go.
package main
