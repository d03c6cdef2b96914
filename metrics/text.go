package metrics

import (
	"math"
	"strconv"
	"strings"
)

// contentType is the content type of the text that Text writes.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// Kind is the type of a family of samples.
type Kind string

// The kinds of families.
const (
	KindCounter   Kind = "counter"
	KindGauge     Kind = "gauge"
	KindHistogram Kind = "histogram"
)

// Text builds the exposition. The zero value is ready to use. A sample belongs to the family that was started last,
// and all samples of a family must be written together.
type Text struct {
	buf []byte
	// family, help and kind are those of the family that was started last. Its header is written with the first
	// sample, so that a family without samples does not appear.
	family string
	help   string
	kind   Kind
	opened bool
}

// Bytes returns the text that was written so far.
func (t *Text) Bytes() []byte { return t.buf }

// Reset empties the text and keeps its buffer.
func (t *Text) Reset() { *t = Text{buf: t.buf[:0]} }

// Family starts a family.
func (t *Text) Family(name, help string, kind Kind) {
	t.family, t.opened = name, false
	t.help, t.kind = help, kind
}

// Gauge writes a family of one gauge, with labels as alternating names and values.
func (t *Text) Gauge(name, help string, value float64, labels ...string) {
	t.Family(name, help, KindGauge)
	t.Sample(value, labels...)
}

// Flag returns the value of a gauge that says yes or no.
func Flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// Sample writes a sample of the family with labels as alternating names and values.
func (t *Text) Sample(value float64, labels ...string) { t.line("", value, 0, "", labels...) }

// Rendered writes a sample with labels that Labels has rendered, followed by more as alternating names and values. at
// is the timestamp in milliseconds since 1970; 0 writes none.
func (t *Text) Rendered(value float64, at int64, rendered string, more ...string) {
	t.line("", value, at, rendered, more...)
}

// line is Rendered for a name that ends with suffix.
func (t *Text) line(suffix string, value float64, at int64, rendered string, more ...string) {
	t.open()
	t.buf = append(t.buf, t.family...)
	t.buf = append(t.buf, suffix...)
	t.labels(rendered, more)
	t.value(value)
	if at != 0 {
		t.buf = append(t.buf, ' ')
		t.buf = strconv.AppendInt(t.buf, at, 10)
	}
	t.buf = append(t.buf, '\n')
}

// open writes the header of the family before its first sample.
func (t *Text) open() {
	if t.opened {
		return
	}
	t.opened = true
	t.buf = append(t.buf, "# HELP "...)
	t.buf = append(t.buf, t.family...)
	t.buf = append(t.buf, ' ')
	t.buf = append(t.buf, helpEscapes.Replace(t.help)...)
	t.buf = append(t.buf, "\n# TYPE "...)
	t.buf = append(t.buf, t.family...)
	t.buf = append(t.buf, ' ')
	t.buf = append(t.buf, t.kind...)
	t.buf = append(t.buf, '\n')
}

// labels writes the labels in braces, if there are any.
func (t *Text) labels(rendered string, more []string) {
	if rendered == "" && len(more) == 0 {
		return
	}
	t.buf = append(t.buf, '{')
	t.buf = append(t.buf, rendered...)
	comma := rendered != ""
	for i := 0; i+1 < len(more); i += 2 {
		t.buf = appendLabel(t.buf, comma, more[i], more[i+1])
		comma = true
	}
	t.buf = append(t.buf, '}')
}

func (t *Text) value(v float64) {
	t.buf = append(t.buf, ' ')
	if whole := int64(v); float64(whole) == v && whole > -1<<53 && whole < 1<<53 {
		t.buf = strconv.AppendInt(t.buf, whole, 10)
		return
	}
	t.buf = append(t.buf, formatFloat(v)...)
}

func formatFloat(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// Labels renders labels, as alternating names and values, for many calls of Rendered.
func Labels(labels ...string) string {
	var buf []byte
	for i := 0; i+1 < len(labels); i += 2 {
		buf = appendLabel(buf, i > 0, labels[i], labels[i+1])
	}
	return string(buf)
}

func appendLabel(buf []byte, comma bool, name, value string) []byte {
	if comma {
		buf = append(buf, ',')
	}
	buf = append(buf, name...)
	buf = append(buf, `="`...)
	if strings.ContainsAny(value, "\\\"\n") {
		value = labelEscapes.Replace(value)
	}
	// Pods choose the names of their network interfaces. With other bytes, Prometheus refuses the whole page.
	buf = append(buf, strings.ToValidUTF8(value, "\uFFFD")...)
	return append(buf, '"')
}

var (
	labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
)
