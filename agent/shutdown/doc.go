// Package shutdown ends the pods before the machine goes down (graceful node shutdown, KEP-2000 and KEP-2712): group by
// group in rising priority, each within its own time, while logind delays the shutdown.
//
// It owns the delay lock, the order of the groups and the record of how far a shutdown has come. It ends no pod itself:
// the supervisor does; and it publishes no condition: the node's reporter does.
//
// cmd/nodelet creates one Shutdown and runs it in parallel with the supervisor, which asks it about new pods and about
// those that an interrupted run has begun to end. A crash in the middle of a shutdown leaves the lock with systemd and
// the record on disk: the next run continues with the same group.
package shutdown
