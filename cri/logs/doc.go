// Package logs reads, follows, rotates and removes the log files of containers.
//
// It owns the files below podLogsDir: the parsing of the CRI's log format, the last lines, lines since a time, one
// stream, and following a log across rotations without losing or repeating a line. A log that has grown beyond its size
// is renamed to NAME.YYYYMMDD-HHMMSS, the runtime opens a new one, older files are compressed and the oldest are
// removed. The names are the kubelet's. It also makes and removes the directories of pods and the links for log
// collectors (Tree).
//
// Pods may be able to write below the directory, so every path is resolved beneath it, no symbolic link is followed and
// only regular files are read. The package never decides which container is meant, speaks no HTTP, and does nothing
// while no log is read or grows.
//
// agent/podapi calls Read, the agent reads termination messages with Content, its steps use the Tree, cmd/nodelet runs
// the Rotator. A crash during a rotation leaves a renamed file that the runtime still writes to; the next round lets it
// open a new one.
package logs
