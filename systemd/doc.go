// Package systemd speaks with systemd, which starts and watches the agent.
//
// It owns the notification protocol (sd_notify(3)): "ready", "stopping", "still alive". It never starts, stops or configures
// units. cmd/nodelet calls it; without systemd all of it does nothing. It keeps no state, so a crash leaves nothing behind:
// systemd restarts the agent, and its pods do not notice.
package systemd
