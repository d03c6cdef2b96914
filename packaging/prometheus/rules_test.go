// Package prometheus_test checks the alert rules and the dashboard.
package prometheus_test

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/nodelet/nodelet/test/programs"
)

// TestRules runs promtool on the rules and their tests.
func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "nodelet.rules.yaml"}, {"test", "rules", "nodelet.test.yaml"}} {
		if out, err := exec.Command(programs.Find(t, "promtool"), args...).CombinedOutput(); err != nil {
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
			t.Errorf("got no test of the alert %s, want one", n[1])
		}
	}
}
