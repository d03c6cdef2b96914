package manager

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/rest"
)

// silentRuntime is a container runtime that reports no directories, as CRI-O.
type silentRuntime struct{}

func (silentRuntime) Info(context.Context) (map[string]string, error)     { return nil, nil }
func (silentRuntime) SandboxIDs(context.Context) (map[string]bool, error) { return nil, nil }

// TestChoose checks the mode and the directories for plugins when the runtime reports no directories.
func TestChoose(t *testing.T) {
	configured := t.TempDir()
	if err := os.WriteFile(filepath.Join(configured, "10-net.conflist"), []byte(`{"name":"net"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	close(answered)
	for name, test := range map[string]struct {
		mode, confDir string
		bins          []string
		core          rest.Interface
		want          string
		wantBins      []string
	}{
		"agent": {ModeAgent, t.TempDir(), nil, nil, ModeAgent, []string{defaultBinDir}},
		"agent with a directory": {
			ModeAgent, t.TempDir(), []string{"/bins"}, nil, ModeAgent, []string{"/bins"},
		},
		"auto":                           {ModeAuto, t.TempDir(), nil, nil, ModeAgent, []string{defaultBinDir}},
		"auto with an API server":        {ModeAuto, t.TempDir(), nil, &rest.RESTClient{}, ModeRuntime, nil},
		"auto with a configured network": {ModeAuto, configured, nil, nil, ModeRuntime, nil},
		"runtime":                        {ModeRuntime, t.TempDir(), nil, nil, ModeRuntime, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Manager{log: slog.New(slog.DiscardHandler), cfg: Config{
				Core:     test.core,
				Mode:     test.mode,
				ConfDir:  test.confDir,
				BinDirs:  test.bins,
				Runtime:  silentRuntime{},
				Answered: answered,
			}}
			found, ok := m.dirs(t.Context())
			if !ok {
				t.Fatal("got no directories, want some")
			}
			mode, dirs := m.choose(found)
			if mode != test.want || !slices.Equal(dirs.Bins, test.wantBins) {
				t.Errorf("got %s, %q; want %s, %q", mode, dirs.Bins, test.want, test.wantBins)
			}
		})
	}
}

// lateRuntime is a container runtime that does not answer until it has been asked some times.
type lateRuntime struct {
	silentRuntime
	missing int
}

func (r *lateRuntime) Info(context.Context) (map[string]string, error) {
	if r.missing--; r.missing >= 0 {
		return nil, errors.New("connection refused")
	}
	return map[string]string{"config": `{"cni":{"confDir":"/conf","binDirs":["/bins"]}}`}, nil
}

// TestRuntimeIsAskedAgain checks that a runtime which is away for a moment is asked again for its directories.
func TestRuntimeIsAskedAgain(t *testing.T) {
	answered := make(chan struct{})
	close(answered)
	synctest.Test(t, func(t *testing.T) {
		m := &Manager{log: slog.New(slog.DiscardHandler), cfg: Config{Runtime: &lateRuntime{missing: 3}, Answered: answered}}
		if d, ok := m.dirs(t.Context()); !ok || d.Conf != "/conf" || !slices.Equal(d.Bins, []string{"/bins"}) {
			t.Errorf("got %+v, %v, want /conf and /bins", d, ok)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m.cfg.Runtime = &lateRuntime{missing: 3}
		if d, ok := m.dirs(ctx); ok {
			t.Errorf("at the end of the agent: got %+v, want no directories", d)
		}
	})
}
