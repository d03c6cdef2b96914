// Package loglevel has the levels of the log that log/slog does not name. The agent logs with them, and the flag --v
// turns them on.
package loglevel

import "log/slog"

// Pods is the level of the messages about the start and the end of each pod (-v=2).
const Pods slog.Level = -2
