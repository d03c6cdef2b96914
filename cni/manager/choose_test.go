package manager

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
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
		cluster       cluster
		want          string
		wantBins      []string
	}{
		"agent": {ModeAgent, t.TempDir(), nil, standalone{}, ModeAgent, []string{defaultBinDir}},
		"agent with a directory": {
			ModeAgent, t.TempDir(), []string{"/bins"}, standalone{}, ModeAgent, []string{"/bins"},
		},
		"auto":                           {ModeAuto, t.TempDir(), nil, standalone{}, ModeAgent, []string{defaultBinDir}},
		"auto with an API server":        {ModeAuto, t.TempDir(), nil, apiServer{}, ModeRuntime, nil},
		"auto with a configured network": {ModeAuto, configured, nil, standalone{}, ModeRuntime, nil},
		"runtime":                        {ModeRuntime, t.TempDir(), nil, standalone{}, ModeRuntime, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Manager{log: slog.New(slog.DiscardHandler), cluster: test.cluster, cfg: Config{
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
