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

// playPoorApt is an apt-get that cannot update its lists, does not know one package, and refuses to install any until
// dpkg has configured what a killed installation has left.
const playPoorApt = `#!/bin/sh
cd "$PLAY_APT" || exit
case "$0 $*" in
*dpkg*) : > configured ;;
*update | *absent*) exit 100 ;;
*)
	[ -e configured ] || exit 100
	for package; do :; done
	: > "$package" ;;
esac
`

// TestInstallDebianInPart checks that a moment in which apt does not update its lists, a killed installation, and a
// package that cannot be had keep no other package away, and that the error names that one.
func TestInstallDebianInPart(t *testing.T) {
	NeedPrograms(t, nil)
	dir := t.TempDir()
	for _, program := range []string{"apt-get", "dpkg"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte(playPoorApt), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("PLAY_APT", dir)
	needs := []need{
		{pkg: "first", file: filepath.Join(dir, "first")},
		{pkg: "absent", file: filepath.Join(dir, "absent")},
		{pkg: "last", file: filepath.Join(dir, "last")},
	}
	err := installDebian(t.Context(), testWriter{t}, needs)
	if want := "install Debian packages absent:"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	for _, n := range []need{needs[0], needs[2]} {
		if !n.met() {
			t.Errorf("package %s: got that it is missing, want that it is installed", n.pkg)
		}
	}
	if err := installDebian(t.Context(), testWriter{t}, append(needs[:1:1], needs[2])); err != nil {
		t.Errorf("without the package that cannot be had: got %v, want nil", err)
	}
}
