// Package exposition parses metrics with the parser of Prometheus, for tests. It has no state.
package exposition

import (
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Parse returns the families of a text by name. It fails the test if Prometheus cannot read the text, or would find a
// series in it twice.
func Parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("Prometheus cannot read the metrics: %v in:\n%s", err, text)
	}
	for name, family := range families {
		series := map[string]bool{}
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.String())
			}
			slices.Sort(labels)
			if key := strings.Join(labels, ","); series[key] {
				t.Errorf("got the series %s{%s} twice", name, key)
			} else {
				series[key] = true
			}
		}
	}
	return families
}
