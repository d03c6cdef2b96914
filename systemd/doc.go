// Package systemd speaks with systemd: the service manager, which starts and watches the agent, and logind, which shuts the
// machine down.
//
// It owns the notification protocol (sd_notify(3): "ready", "stopping", "still alive", descriptors to be kept), the delay lock
// that makes a shutdown wait for the pods, the form in which journald reads a log, and the text of the unit files. It decides
// nothing: which pods end when is agent/plan's and agent's affair, and only cmd/nodelet installs units. Without systemd all of it
// does nothing. It keeps no state but a drop-in of logind's (99-nodelet.conf) that lets a shutdown wait for long enough; after a
// crash systemd starts the agent anew with the lock that it held.
package systemd
