package testbed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/waittest"
)

// playApt is an apt-get that knows one package. It refuses to update its lists while another one does, and the first
// update takes until the test makes the file proceed.
const playApt = `#!/bin/sh
cd "$PLAY_APT" || exit
case "$*" in
*update)
	mkdir lists || exit 100
	echo update >> calls
	until [ -e proceed ]; do sleep 0.02; done
	rmdir lists ;;
*)
	echo install >> calls
	: > installed ;;
esac
`

// TestInstallDebianAtOnce checks that of two processes that miss the same package one installs it, and the other waits
// and then needs nothing.
func TestInstallDebianAtOnce(t *testing.T) {
	NeedPrograms(t, nil)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(playApt), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("PLAY_APT", dir)
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	ctx := waittest.Context(t)
	install := func(waits waiting) chan error {
		ended := make(chan error, 1)
		go func() {
			ended <- installDebian(ctx, waits, []need{{pkg: "played", file: filepath.Join(dir, "installed")}})
		}()
		return ended
	}
	first := install(make(waiting, 1))
	waittest.Until(t, "the first update", func() bool { return exists("calls") })
	waits := make(waiting, 1)
	second := install(waits)
	if got := <-waits; !strings.Contains(got, "another process") {
		t.Errorf("the second: got %q, want that it waits", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "proceed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ended := range []chan error{first, second} {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if want := "update\ninstall\n"; err != nil || string(calls) != want {
		t.Errorf("got the calls %q, %v, want %q", calls, err, want)
	}
}
