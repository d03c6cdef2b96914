package systemd

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodelet/nodelet/internal/loglevel"
)

// TestJSONLog checks the keys of the JSON format of Kubernetes.
func TestJSONLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: jsonAttr}))
	log = log.With("pod", "default/web")
	log.Info("info", "took", 1500*time.Millisecond)
	log.Log(t.Context(), loglevel.Pods, "pods")
	log.Debug("debug")
	log.Warn("warn", "err", errors.New("no such file"))
	log.Error("error", "err", "text")
	pod := map[string]any{"name": "web", "namespace": "default"}
	want := []map[string]any{
		{"msg": "info", "v": 0.0, "pod": pod, "took": "1.5s"},
		{"msg": "pods", "v": 2.0, "pod": pod},
		{"msg": "debug", "v": 4.0, "pod": pod},
		{"msg": "warn", "v": 0.0, "level": "warn", "pod": pod, "err": "no such file"},
		{"msg": "error", "level": "error", "pod": pod, "err": "text"},
	}
	var got []map[string]any
	for d := json.NewDecoder(&out); d.More(); {
		var record map[string]any
		if err := d.Decode(&record); err != nil {
			t.Fatal(err)
		}
		ts, ok := record["ts"].(float64)
		if at := time.UnixMilli(int64(ts)); !ok || time.Since(at) < 0 || time.Since(at) > time.Hour {
			t.Errorf("got ts %v, want milliseconds since 1970", record["ts"])
		}
		delete(record, "ts")
		got = append(got, record)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestLogCaller checks that the caller is a directory, a file and a line.
func TestLogCaller(t *testing.T) {
	got := jsonAttr(nil, slog.Any(slog.SourceKey, &slog.Source{File: "/src/agent/worker.go", Line: 7}))
	if !got.Equal(slog.String("caller", "agent/worker.go:7")) {
		t.Errorf("got %v", got)
	}
}

// TestTextLevel checks that a level between two others has the name of one.
func TestTextLevel(t *testing.T) {
	for _, level := range []slog.Level{loglevel.Pods, -1} { // -1 is V(1) of client-go
		var out bytes.Buffer
		h := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: loglevel.Pods, ReplaceAttr: textAttr})
		slog.New(h).Log(t.Context(), level, "x")
		if got, want := out.String(), "level=INFO msg=x"; !strings.Contains(got, want) {
			t.Errorf("level %d: got %q, want %q in it", level, got, want)
		}
	}
}
