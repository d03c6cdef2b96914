// Package plan decides what a pod needs next. It is pure: no clock, no I/O, no context, no logger, no error.
//
//	func Pod(podstate.Desired, podstate.Observed) Plan
//
// A Plan holds the steps that may run now, all at the same time, the status to publish, what the pod waits for and when
// to plan again. It has no sequence of steps: what comes first follows from facts, so after a crash, a lost answer or
// half-done work it is enough to observe and plan again. Attempt numbers come from facts too, which makes them the
// idempotency key: a repeated create collides with itself in the runtime.
//
// It owns the rules of init order, restart, stop, reset and resize. Package podstate says what is true of the pod,
// package podstatus what the API should show of it. Plan never acts. The agent's worker calls it, once for each event
// of the pod; so does the simulation. It keeps nothing, so a crash leaves nothing behind.
//
// # Invariants
//
// Whatever happens to a pod, its node and the agent, the following holds. The simulation checks it after each event;
// its functions of these names are in rules*_test.go and simnode_test.go. TestMutants shows that each of them notices a
// mistake.
//
//   - started: no two instances of a container run at the same time, and no attempt number runs twice.
//   - beginning: two steps with one key are never in flight, except for a stop with an earlier deadline. A failed step
//     is not tried again at once. While a container runs, no sandbox is created, its own sandbox is not stopped, no
//     volume is unmounted and no resource claim released. While one may be started, no volume is unmounted.
//   - oneWay: a step does not begin while its opposite is in flight.
//   - devicesFirst: nothing of a pod is made while devices that it has had are missing.
//   - claimsFirst: no sandbox and no container is created before the pod's resource claims are prepared.
//   - volumesFirst: no container is created before the pod's volumes are mounted.
//   - imageFirst: no container is created before its image has been ensured for this attempt, again after a failed
//     creation, and with the policy Always again after a long wait.
//   - forward: nothing starts in a pod that must end or is past its deadline.
//   - inOrder: in each sandbox, no container is created before the init containers ahead of it have succeeded and the
//     sidecars ahead of it have started.
//   - hooksBefore: no container is created or started while one before it is, or runs its postStart hook. Ephemeral
//     containers do not wait.
//   - workKept: an init container does not run again after a later container has started in its sandbox.
//   - policyKept: a container runs again only if its restart policy or rules ask for it, its spec has changed, its init
//     work was lost with the sandbox, or the agent has stopped it for a failed probe, a lost sandbox or an unknown
//     state.
//   - notFinal: no container runs again after a status has shown an end that its restart policy makes final.
//   - backoffKept: crash-loop back-offs double from the first to the longest, and begin again after a long run or with
//     a new spec.
//   - resetWaits: that also holds for what a reset has removed, unless it ran for at least as long as its back-off.
//   - unstartedWaits: the delays between starts that fail double from a second to a minute, if the runtime removes each
//     instance that does not start.
//   - sandboxWaits: so do the delays between sandboxes, as long as no container starts in one.
//   - fewSandboxes: when a sandbox is created, and at rest, each but the newest has a container or is being removed.
//   - resetting: containers are removed for a reset only after an exit code has asked for one, not that of a container
//     which the agent has stopped to restart it.
//   - marked: containers are stopped and removed for a reset only after the marker file is written.
//   - stoppingOne: until the grace period ends, sidecars outlive the app containers, also those that are being started,
//     and stop in reverse order; no container gets more time than the pod's stop allows.
//   - oneGrace: all containers of a lost sandbox end within one grace period, unless the runtime fails to stop or loses
//     one.
//   - preStopping, hookFirst: in one run of the agent, the preStop hook of a container runs once, before the container
//     is stopped; if the runtime fails to run it, it is tried again. Only if the time of the stop has passed, no hook
//     runs any more.
//   - undisturbed: the newest instance of a container, which runs in the current sandbox, is stopped only for a reason
//     of its own, whatever a mirror pod shows that comes late.
//   - unlogged: the numbers of a static pod's instances go on after those that have left logs.
//   - resultKept: a pod that had completed before it got a stop with a reason keeps its result. Any other fails for
//     that reason, also if the agent is killed meanwhile and finds its record of the stop.
//   - replacedForReason: a container is replaced only for another spec or a resize.
//   - statusTrue: what is reported as ready is ready, nothing runs in a pod that is reported as finished, and none that
//     had completed in time fails for its deadline.
//   - neverBack: a terminal phase is final, and restart counts only grow.
//   - freed: Released means that nothing is held any more, Done that no trace is left.
//   - reclaimed: a pod counts as reclaimed once it is released and the runtime has nothing left of it. At rest, a pod
//     that is to be reclaimed is.
//   - goesOn: a plan has steps, waits for steps or for missing devices, or wakes later, never now. Once all goes well,
//     the pod comes to rest.
//   - checkRest: a pod at rest is where it belongs: each container runs as its spec says or has ended for good, and a
//     pod that has ended by itself had nothing left to do. What the agent has stopped to restart it has not ended.
//   - beginningResize, podHasRoom, shrinksFirst, resourcesTrue, resizedAtRest: what is allocated is what is set, in
//     place where the policy allows, never while the pod's cgroup is too small for its containers or one of them still
//     has to shrink, and no status reports it earlier.
//     New instances do not wait for a cgroup that has failed to grow.
package plan
