package pod

import "strings"

// MaxMessage is how much of an error is kept for the status of a pod, in bytes.
const MaxMessage = 4 << 10

// Shorten leaves out the middle of a text that has more than limit bytes. The cause of an error comes last.
func Shorten(text string, limit int) string {
	const gap = " … "
	if len(text) <= limit {
		return text
	}
	half := (limit - len(gap)) / 2
	return strings.ToValidUTF8(text[:half]+gap+text[len(text)-half:], "")
}
