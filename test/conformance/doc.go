// Command conformance runs Kubernetes' own test suite against a node agent in a testbed and holds the outcome against
// known.txt, the list of specs that may fail.
//
// It owns a testbed of its own name for the time it runs, and a directory for its reports. It never judges an agent by
// itself: the suite does. `make conformance` calls it. A crash leaves the testbed up; the next run, or "testbed down",
// ends it, with the state root that main.go names in NODELET_TESTBED_STATE.
package main
