// Package podsapi serves the kubelet's local pods API (KEP-4188) at <root-dir>/pods-api/pods-api.sock: programs on the
// node list, get and watch its pods without the API server.
//
// It owns the socket and what each watch has sent. It never decides what a pod's status is, and it keeps no pod: it
// asks for the newest ones when a client does, or when a watched pod has changed. Without clients it does nothing.
// Package main runs it, and the agent's supervisor calls Changed. A crash leaves the socket, which the next start
// replaces; clients connect again and get the full list.
package podsapi
