package systemd

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"
)

// textAttr gives levels between two of slog's the name of the one above.
func textAttr(groups []string, a slog.Attr) slog.Attr {
	l, ok := a.Value.Any().(slog.Level)
	if ok && len(groups) == 0 && a.Key == slog.LevelKey && slog.LevelDebug < l && l < slog.LevelInfo {
		return slog.String(slog.LevelKey, slog.LevelInfo.String())
	}
	return a
}

// jsonAttr gives records the keys of the JSON format of Kubernetes (k8s.io/component-base/logs/json): ts in
// milliseconds since 1970, caller, msg, v, err, and pods as objects. Kubernetes has no warnings: these have v 0 and the
// additional key level, as have errors, which have no v.
func jsonAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch v := a.Value.Any().(type) {
	case time.Time:
		if a.Key == slog.TimeKey {
			return slog.Float64("ts", float64(v.UnixNano())/float64(time.Millisecond))
		}
	case slog.Level:
		if a.Key == slog.LevelKey {
			return jsonLevel(v)
		}
	case *slog.Source:
		dir, file := filepath.Split(v.File)
		return slog.String("caller", fmt.Sprintf("%s/%s:%d", filepath.Base(dir), file, v.Line))
	case time.Duration:
		return slog.String(a.Key, v.String())
	case string:
		if namespace, name, ok := strings.Cut(v, "/"); ok && a.Key == "pod" {
			return slog.Group("pod", "name", name, "namespace", namespace)
		}
	}
	return a
}

// jsonLevel returns the verbosity, and the level of warnings and errors, without a name of their own: the keys appear
// beside the others.
func jsonLevel(l slog.Level) slog.Attr {
	switch {
	case l >= slog.LevelError:
		return slog.String("level", "error")
	case l >= slog.LevelWarn:
		return slog.Group("", "v", 0, "level", "warn")
	}
	return slog.Int("v", int(slog.LevelInfo-l))
}
