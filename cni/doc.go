// Package cni sets up the pod network of the node, or watches the runtime doing so. It has two modes:
//
//   - Mode "runtime": the runtime runs the plugins of the node's network configuration, as usual. Watcher checks the
//     configuration and the plugins and reports what is missing.
//   - Mode "agent": the agent is the runtime's only plugin (Install, package shim). It serves ADD, CHECK and DEL on
//     a unix socket (Server) and runs the real chain of plugins through libcni (Driver), with the user's configuration
//     or one generated from the node's pod CIDRs (Default).
//
// It owns the records of attachments below <root-dir>/cni, one directory for each sandbox, and what it writes into the
// runtime's directories. It never makes a network namespace, and removes only those of sandboxes that a killed runtime
// has lost. It knows pods only by the names that the runtime passes. cni/manager calls it; the runtime calls it through
// the plugin.
//
// After a crash an unfinished record lists what may have been set up; the next DEL or clean-up releases it. Records are
// not synced to disk: nothing that they describe survives a reboot except host-local's addresses, and those are
// compared with the runtime's sandboxes.
package cni
