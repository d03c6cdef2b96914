// Package systemd talks to systemd: the service manager, which starts and watches the agent, and logind, which shuts
// the machine down.
//
// It owns the notification protocol (sd_notify(3): ready, stopping, watchdog, stored file descriptors), the inhibitor
// lock that delays a shutdown until the pods have ended, the log format for journald, the text of the unit files, and
// their installation. It never decides when a pod ends; agent/shutdown and agent/plan do. Without systemd the
// notifications do nothing and Install refuses to run.
//
// cmd/nodelet calls it, and agent/shutdown uses logind through its interface Bus. Its only state is a logind drop-in
// (99-kubelet.conf) that allows a long enough delay, and what Install writes. After a crash systemd restarts the agent
// and passes the inhibitor lock back to it.
package systemd
