// Command differential runs the same pods on the kubelet and on nodelet, one after the other in the same testbed, and compares
// what can be seen of them from outside: statuses, events, and the calls to the runtime with their configurations.
//
// It owns the corpus of pods and known.txt, the list of the differences that may be, each with its reason. It changes nothing
// it sees: a proxy before the runtime listens and hands on. `make differential` calls it. A crash leaves the testbed up; the
// next run, or "testbed down", ends it.
package main
