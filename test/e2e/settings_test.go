//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// configure restarts the agent with additional settings. The end of the test restarts it with its own configuration.
func configure(t *testing.T, settings string) {
	t.Helper()
	own := readConfig(t)
	restart := func(config string) {
		stopAgent(t, unix.SIGTERM)
		writeConfig(t, config)
		mark := markLog(t)
		startAgent(t)
		mark.waitLine(t, "node is registered")
	}
	t.Cleanup(func() { restart(own) })
	restart(withSettings(own, settings))
}

func readConfig(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(node().ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeConfig(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(node().ConfigFile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// withSettings adds settings to a configuration and removes top-level settings of the same names.
func withSettings(config, settings string) string {
	var kept strings.Builder
	skip := false
	for line := range strings.Lines(config) {
		if key, _, top := strings.Cut(line, ":"); top && line[0] != ' ' {
			skip = strings.Contains("\n"+settings, "\n"+key+":")
		}
		if !skip {
			kept.WriteString(line)
		}
	}
	return kept.String() + settings
}
