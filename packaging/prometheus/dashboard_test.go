package prometheus_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/programs"
)

// dashboard is what the test reads of the dashboard of Grafana.
type dashboard struct {
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ H, W, X, Y int }
		FieldConfig              struct {
			Defaults struct{ Thresholds struct{ Steps []any } }
		}
		Targets []struct {
			Expr    string
			Instant bool
		}
	}
}

// TestDashboard checks that each panel has a description, a query that Prometheus can parse, an ID of its own and a
// place of its own. Panels with one number need thresholds: Grafana's default makes more than 80 pods red. They show no
// number of a series that has ended.
// TestLongPrometheus of test/e2e runs the queries.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("nodelet.dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: got the ID %d twice, want it once", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("got panel %s over %s, want none over another", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s: got no query, want one", p.Title)
		}
		if p.Type != "row" && p.Description == "" {
			t.Errorf("%s: got no description, want one", p.Title)
		}
		if p.Type == "stat" && len(p.FieldConfig.Defaults.Thresholds.Steps) == 0 {
			t.Errorf("%s: got no thresholds, want them", p.Title)
		}
		for i, target := range p.Targets {
			if p.Type == "stat" && !target.Instant && !strings.HasSuffix(target.Expr, " or vector(0)") {
				t.Errorf("%s: got a query whose series can end, so that the last value stays; want an instant or a zero", p.Title)
			}
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "1m")
			fmt.Fprintf(&rules, "  - record: panel:%d_%d\n    expr: %q\n", p.ID, i, expr)
		}
	}
	if len(ids) < 10 {
		t.Errorf("got %d panels, want at least 10", len(ids))
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(programs.Find(t, "promtool"), "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
