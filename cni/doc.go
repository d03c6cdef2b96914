// Package cni is the node's pod network, as far as the agent has to do with it. It has two ways of working:
//
//   - Mode "runtime": the runtime calls the plugins of the node's network configuration, as everywhere. This room watches the
//     configuration and the plugins and says in words what is missing (Watcher).
//   - Mode "agent": the agent is the network. It installs itself as the runtime's one plugin (Install, package shim), takes
//     ADD, CHECK, DEL, STATUS and GC over a unix socket (Server), and runs the real chain of plugins through libcni (Driver),
//     from the user's configuration or one made from the node's pod ranges (Default).
//
// It owns the records of attachments below <root-dir>/cni, one directory for each sandbox, and what it wrote into the
// runtime's directories. It never makes a network namespace, and removes but those of sandboxes that a runtime has
// forgotten as it was killed. It knows pods only by the names that the runtime passes on. cmd wires it; the runtime
// calls it through the plugin.
//
// A crash leaves records: one that was begun and not finished says what may have been set up, so the next DEL, or the
// clean-up at the next start, gives it back. Records are not synced to disk, as nothing that they speak of survives the
// machine but host-local's addresses, and those are held against the runtime's sandboxes.
package cni
