package figures

import (
	"bufio"
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Promise is one row of a table in SPECIFICATION.md. Its columns are: the promise in words, the run that measures it,
// the side ("nodelet") or the two sides whose ratio counts ("nodelet / kubelet"), the measure, the statistic (p50, p90,
// p99 or max), and the bound ("≤ 1.2" or "≥ 0.95").
type Promise struct {
	Text      string
	Run       string
	Side      string
	Against   string // the divisor's side; empty if the figure itself counts
	Measure   string
	Statistic string
	AtLeast   bool // the bound is a lower one
	Bound     float64
}

// header is the first row of each table of promises.
var header = []string{"Promise", "Run", "Sides", "Measure", "Statistic", "Bound"}

var quantiles = map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1}

// ParsePromises returns the rows of all tables of promises in a Markdown text. Other tables are ignored.
func ParsePromises(markdown []byte) ([]Promise, error) {
	var promises []Promise
	inTable := false
	lines := bufio.NewScanner(bytes.NewReader(markdown))
	for n := 1; lines.Scan(); n++ {
		cells, ok := row(lines.Text())
		switch {
		case !ok:
			inTable = false
		case strings.Join(cells, "|") == strings.Join(header, "|"):
			inTable = true
		case inTable && !rule(cells):
			p, err := parsePromise(cells)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			promises = append(promises, p)
		}
	}
	return promises, lines.Err()
}

// row returns the cells of a row of a Markdown table.
func row(line string) ([]string, bool) {
	inner, ok := strings.CutPrefix(strings.TrimSpace(line), "|")
	if !ok {
		return nil, false
	}
	cells := strings.Split(strings.TrimSuffix(inner, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells, true
}

// rule reports whether the row is the line below a table's header.
func rule(cells []string) bool {
	return strings.Trim(strings.Join(cells, ""), "-:") == ""
}

var boundForm = regexp.MustCompile(`^(≤|≥) ([0-9]+(?:\.[0-9]+)?)$`)

func parsePromise(cells []string) (Promise, error) {
	if len(cells) != len(header) {
		return Promise{}, fmt.Errorf("a promise has %d columns, got %d", len(header), len(cells))
	}
	p := Promise{Text: cells[0], Run: cells[1], Measure: cells[3], Statistic: cells[4]}
	side, against, ratio := strings.Cut(cells[2], "/")
	p.Side = strings.TrimSpace(side)
	p.Against = strings.TrimSpace(against)
	if p.Side == "" || ratio && p.Against == "" {
		return Promise{}, fmt.Errorf("column Sides: got %q, want one side or \"one / other\"", cells[2])
	}
	if _, ok := quantiles[p.Statistic]; !ok {
		return Promise{}, fmt.Errorf("column Statistic: got %q, want p50, p90, p99 or max", p.Statistic)
	}
	m := boundForm.FindStringSubmatch(cells[5])
	if m == nil {
		return Promise{}, fmt.Errorf("column Bound: got %q, want \"≤ 1.2\" or \"≥ 0.95\"", cells[5])
	}
	p.AtLeast = m[1] == "≥"
	p.Bound, _ = strconv.ParseFloat(m[2], 64) // the form is checked
	return p, nil
}

// Value returns the figure that the promise is about. It is an error if the record has no such measure, or if the
// divisor is zero.
func (p *Promise) Value(r *Record) (float64, error) {
	value, err := p.statistic(r, p.Side)
	if err != nil || p.Against == "" {
		return value, err
	}
	divisor, err := p.statistic(r, p.Against)
	if err != nil {
		return 0, err
	}
	if divisor == 0 {
		return 0, fmt.Errorf("%q of %s is 0", p.Measure, p.Against)
	}
	return value / divisor, nil
}

func (p *Promise) statistic(r *Record, side string) (float64, error) {
	samples := r.Sides[side][p.Measure]
	if len(samples) == 0 {
		return 0, fmt.Errorf("the run %q did not measure %q of %s", r.Run, p.Measure, side)
	}
	return Quantile(samples, quantiles[p.Statistic]), nil
}

// Keeps reports whether value is within the bound.
func (p *Promise) Keeps(value float64) bool {
	if p.AtLeast {
		return value >= p.Bound
	}
	return value <= p.Bound
}

// BoundText returns the bound as it is in the table.
func (p *Promise) BoundText() string {
	if p.AtLeast {
		return "≥ " + strconv.FormatFloat(p.Bound, 'f', -1, 64)
	}
	return "≤ " + strconv.FormatFloat(p.Bound, 'f', -1, 64)
}
