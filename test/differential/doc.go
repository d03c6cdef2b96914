// Command differential runs the same pods on the kubelet and on nodelet, one after the other in the same testbed, and
// compares what can be seen of them from outside: statuses, events, and the calls to the runtime with their
// configurations.
//
// It owns the corpus of pods, the making of random ones, and known.txt, the list of expected differences with their
// reasons. It changes no call: a proxy in front of the runtime records and forwards them. `make differential` calls it.
// A crash leaves the testbed up; the next run, or "testbed down", removes it.
package main
