// Package programs finds programs of the machine that tests run, beside those that every test may expect.
//
// It owns nothing and has no state. A missing program skips its test, with a reason.
package programs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Require is the environment variable that turns the skips of Find into failures, for machines that must run every
// test.
const Require = "NODELET_TEST_PROGRAMS"

// Find returns the path of a program that is in PATH, or in the package of Prometheus that the testbed has unpacked. It
// skips the test where there is none. If Require is set, the test fails.
func Find(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	unpacked := filepath.Join(prometheus(), program)
	if _, err := os.Stat(unpacked); err == nil {
		return unpacked
	}
	if os.Getenv(Require) == "" {
		t.Skipf("needs %s: %v", program, err)
	} else {
		t.Fatalf("needs %s, and %s is set: %v", program, Require, err)
	}
	return ""
}

// prometheus returns where the testbed unpacks the programs of Debian's package: to install it would start a server.
func prometheus() string {
	cache := os.Getenv("NODELET_TESTBED_CACHE")
	if cache == "" {
		own, _ := os.UserCacheDir()
		cache = filepath.Join(own, "nodelet-testbed")
	}
	return filepath.Join(cache, "debian-prometheus", "usr", "bin")
}
