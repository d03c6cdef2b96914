// Package logs reads and rotates the log files of containers.
//
// It owns how the files below podLogsDir are read: the CRI's log format and Docker's JSON, the last lines, since when,
// which stream, and following a log across rotations without losing or repeating a line. It owns rotation too: when a
// log has grown beyond its size it is renamed to NAME.YYYYMMDD-HHMMSS, the runtime is asked to open a new one, older
// ones are compressed and the oldest are removed. The names are the kubelet's.
//
// Pods may be able to write below the directory, so every path is opened beneath it, no symbolic link is followed and
// only regular files are read. It never decides which container is meant (agent does), speaks no HTTP, and does nothing
// while nobody reads and no log grows. agent calls Read, cmd/nodelet runs the Rotator. A crash in the middle of a
// rotation leaves a renamed file that the runtime still writes to; the next round opens a new one.
package logs
