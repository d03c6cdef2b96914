// Command soak looks for faults of nodelet by itself, for as long as it is given: pods of many kinds come and go on a
// real runtime and a real API server while faults of all kinds are injected, and after each round it checks that
// nothing was lost, doubled, left behind or disturbed.
//
//	go run ./test/soak -duration 1h -seed 7
//	go run ./test/soak -list
//	go run ./test/soak -only agent-kills,api-lags
//	go run ./test/soak -profile lanes -network agent -record test/soak/runs.jsonl
//
// The agent is built with a changed standard library where a fault needs it; see package faultbuild. CSI driver and
// device plugin are copies of this program, so that they can be killed.
//
// It owns one testbed, two proxies (between the agent and the API server, between the agent and the runtime) and a
// small file system for the agent's root directory. It never touches a process or a file outside of them.
//
// Faults are injected in lanes. A lane injects one fault after the other; lanes go on at the same time. The profile
// "lanes" has one for each part of the node that faults change, so faults of different parts overlap; the others have
// one for all. Faults that must not overlap are listed in exclusions. All choices come from the seed, so a run with the
// same seed injects the same faults in the same order in each lane; their timing depends on the machine.
//
// The invariants, checked after each round when the fault is gone and all pods that came and went have been deleted:
//
//   - Undisturbed: the pods that were there before the round run in the same containers, with their files, and are
//     Ready. While the agent is only killed or restarted, they are never anything else.
//   - Once: a pod with restartPolicy Never has run each of its containers exactly once if it succeeded, at most once
//     if not, and its init containers in order.
//   - Monotonic: no phase of a pod went back, no restart count fell, and no pod left Succeeded or Failed.
//   - Alive: the agent runs and has not crashed, the node is Ready, and each pod reached the state it should reach, and
//     went when deleted.
//   - Clean: nothing of the pods that have gone is left: containers, mounts, files, cgroups, interfaces, addresses.
//   - Bounded: goroutines and open files of the agent are not more than at the start, with a margin.
//
// A crash of the command leaves the testbed running; the next run with the same name, or "testbed down", ends it.
package main
