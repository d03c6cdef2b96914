// Package manager runs the pod network of the node: it chooses the mode, starts what package cni offers for it, and
// connects that with the API server.
//
// It owns the choice between the modes "runtime" and "agent", the look-up of additional networks
// (NetworkAttachmentDefinitions, or files of the node), the network-status annotation of pods, and the times at which
// networks of removed sandboxes are released. It never runs a plugin itself and never decides about pods. cmd/nodelet
// makes one Manager, runs it, and asks it for problems; `nodelet check` asks whether its settings can work.
//
// After a crash the records of package cni are still there: Run annotates the pods of all records again, and releases
// what removed sandboxes have left.
package manager
