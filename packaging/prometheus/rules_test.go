// Package prometheus_test checks the alert rules.
package prometheus_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestRules runs promtool, of Debian's package prometheus, on the rules and their tests. It is skipped without
// promtool.
func TestRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		cache, _ := os.UserCacheDir()
		promtool = filepath.Join(cache, "nodelet-testbed/debian-prometheus/usr/bin/promtool")
		if _, err := os.Stat(promtool); err != nil {
			t.Skip("promtool is neither in PATH nor in the cache of the testbed")
		}
	}
	for _, args := range [][]string{{"check", "rules", "nodelet.rules.yaml"}, {"test", "rules", "nodelet.test.yaml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

// TestEachRuleIsTested checks that the tests of promtool name each alert.
func TestEachRuleIsTested(t *testing.T) {
	rules, err := os.ReadFile("nodelet.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("nodelet.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`- alert: (\w+)`).FindAllSubmatch(rules, -1)
	if len(names) < 5 {
		t.Fatalf("got %d rules, want at least 5", len(names))
	}
	for _, n := range names {
		if !regexp.MustCompile(`alertname: ` + string(n[1]) + `\s+exp_alerts`).Match(tests) {
			t.Errorf("no test expects the alert %s", n[1])
		}
	}
}
