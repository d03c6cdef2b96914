// Package loglevel has the levels of the log that log/slog does not name.
//
// It owns their numbers, and never logs. Package agent logs with them, and kube/server/endpoints turns them on for the
// flag --v. It has only constants, so a crash leaves nothing behind.
package loglevel

import "log/slog"

// Pods is the level of the messages about the start and the end of each pod (-v=2).
const Pods slog.Level = -2
