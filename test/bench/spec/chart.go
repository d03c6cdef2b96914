package main

import (
	"bytes"
	"fmt"
	"html"

	"github.com/nodelet/nodelet/test/bench/figures"
)

// The sizes of a picture in pixels.
const (
	chartWidth = 760
	labelWidth = 90
	valueWidth = 90
	barHeight  = 18
	titleSpace = 30
)

var colors = map[string]string{"floor": "#9aa0a6", "null": "#c0a060", "kubelet": "#326ce5", "nodelet": "#2e8b57"}

// chart draws a bar for each side's median of each measure, with a line to the 90th percentile.
func chart(measures []string, sides figures.Sides) []byte {
	var body bytes.Buffer
	y := 0
	for _, m := range measures {
		y = group(&body, y, m, sides)
	}
	var svg bytes.Buffer
	const root = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`
	fmt.Fprintf(&svg, root+"\n", chartWidth, y+8)
	fmt.Fprintf(&svg, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartWidth, y+8)
	svg.Write(body.Bytes())
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

// group draws one measure from y down, and returns where the next one may begin.
func group(w *bytes.Buffer, y int, measure string, sides figures.Sides) int {
	longest := 0.0
	for _, side := range sides.Names() {
		if samples := sides[side][measure]; len(samples) > 0 {
			longest = max(longest, figures.Quantile(samples, 0.9))
		}
	}
	if longest == 0 {
		return y
	}
	fmt.Fprintf(w, `<text x="8" y="%d" font-weight="bold">%s</text>`+"\n", y+20, html.EscapeString(measure))
	y += titleSpace
	scale := (chartWidth - labelWidth - valueWidth) / longest
	for _, side := range sides.Names() {
		samples := sides[side][measure]
		if len(samples) == 0 {
			continue
		}
		p50, p90 := figures.Quantile(samples, 0.5), figures.Quantile(samples, 0.9)
		fmt.Fprintf(w, `<text x="8" y="%d">%s</text>`, y+barHeight-5, side)
		end, tail := labelWidth+p50*scale, labelWidth+p90*scale
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`,
			labelWidth, y, p50*scale, barHeight-4, colors[side])
		fmt.Fprintf(w, `<path d="M%.1f %d H%.1f" stroke="black"/>`, end, y+barHeight/2-2, tail)
		fmt.Fprintf(w, `<text x="%.1f" y="%d">%s</text>`+"\n", tail+6, y+barHeight-5, figures.Number(p50))
		y += barHeight
	}
	return y
}
