// Package listener keeps a socket or port served until its context ends.
//
// It owns the rules that all servers of the agent share: another program may have the port or the path for a while, and
// an error may end a listener; then it is opened again. While the process or the machine has no file descriptor left,
// calls wait and the listener stays. It never reads a request. All packages that serve may call it. A crash leaves the
// file of a UNIX socket, which the next process replaces.
package listener
