// Package suggest finds the name that somebody probably meant.
//
// It owns the measure of similarity. It is pure, so a crash leaves nothing behind. The command line and the readers of
// files call it for an unknown name.
package suggest

import (
	"fmt"
	"slices"
	"strings"
)

// DidYouMean returns `; did you mean "name"?` for the known name that is most similar to written, or "" if none is
// similar.
func DidYouMean(written string, known []string) string {
	if near := Nearest(written, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// Nearest returns the known name with the smallest edit distance, ignoring case, dashes and underscores, or "" if none
// is similar.
func Nearest(written string, known []string) string {
	plain := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	w := plain(written)
	if len(w) > 100 {
		return ""
	}
	known = slices.Sorted(slices.Values(known)) // so that ties are settled in one way
	best, bestDistance := "", 1+max(1, len(w)/4)
	for _, k := range known {
		if d := editDistance(w, plain(k)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// editDistance returns the number of letters to insert, delete or change to turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
