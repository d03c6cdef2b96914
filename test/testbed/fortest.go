package testbed

import (
	"context"
	"os"
	"testing"
	"time"
)

// RequireEnv is the environment variable that turns the skips of ForTest into failures, for machines that must run
// every test.
const RequireEnv = "NODELET_TESTBED_REQUIRE"

// ForTest starts a testbed for a test and takes it down when the test ends. Anything that is left fails the test. What
// tests that were killed have left is taken down before, and a test of another process with the same name is waited
// for. It skips the test with a reason if the test does not run as root, or if programs are not built yet: a build
// takes longer than a test may run.
func ForTest(t testing.TB, o Options) *Testbed {
	t.Helper()
	o.Progress = testWriter{t}
	needBuilt(t, o)
	release, err := Own(t.Context(), o.Name, o.Progress)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	tb, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
		defer cancel()
		if err := tb.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	return tb
}

// NeedPrograms skips a test that does not run as root, and installs the Debian packages of programs that are missing on
// this machine. packages maps programs to packages.
func NeedPrograms(t testing.TB, packages map[string]string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	if err := InstallDebian(t.Context(), testWriter{t}, packages); err != nil {
		t.Fatal(err)
	}
}

// needBuilt skips a test, or fails it, if a testbed cannot be started without a build.
func needBuilt(t testing.TB, o Options) {
	t.Helper()
	skip := t.Skipf
	if os.Getenv(RequireEnv) != "" {
		skip = t.Fatalf
	}
	if os.Geteuid() != 0 {
		skip("needs root: network namespaces, mounts, cgroups")
	}
	if err := lookBuilt(t.Context(), o); err != nil {
		skip("%v", err)
	}
}

// lookBuilt returns an error unless all programs and images are built.
func lookBuilt(ctx context.Context, o Options) error {
	tb, err := newTestbed(o)
	if err != nil {
		return err
	}
	tb.cache.lookOnly = true
	_, err = tb.prepare(ctx)
	return err
}

// testWriter writes to a test's log.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}
