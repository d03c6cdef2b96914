package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestUpgradeWithoutRuntime runs the scripts of an upgrade on a machine whose container runtime is away, so that the
// restarted unit does not become active: they end, for the package manager waits for them.
func TestUpgradeWithoutRuntime(t *testing.T) {
	timeout, err := exec.LookPath("timeout")
	if err != nil {
		t.Fatal(err)
	}
	booted, bin := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"systemctl":          `case "$*" in *--no-block*) ;; *try-restart*) exec sleep 600 ;; esac`,
		"deb-systemd-invoke": `exec systemctl "$@"`,
		"timeout":            "shift; exec " + timeout + ` 1 "$@"`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for name, args := range map[string][]string{"deb/nodelet.postinst": {"configure", "0.1.0"}, "rpm/post": {"2"}} {
		text := strings.ReplaceAll(string(script(name)), "/run/systemd/system", booted)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c := exec.CommandContext(ctx, "sh", append([]string{"-c", text, name}, args...)...)
		c.WaitDelay = time.Second
		out, err := c.CombinedOutput()
		if err != nil || ctx.Err() != nil {
			t.Errorf("%s: got %v, %v and %s, want the end of the script", name, err, ctx.Err(), out)
		}
		cancel()
	}
}
