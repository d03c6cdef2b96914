// Command certify checks a directory with the results of a conformance run, such as hydrophone leaves it, for what the
// Certified Kubernetes programme asks of a submission: its files, the description of the product, and a passed test for
// each spec on the list of the Kubernetes version.
//
// It reads the directory and the list in the sources of the testbed's suite, and owns nothing. It follows no links in
// the description. `make certify` calls it. A crash leaves nothing behind. Sources: instructions.md of
// cncf/k8s-conformance, and the scenarios of kubernetes-sigs/verify-conformance.
package main
