package podstatus

import (
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
)

// messagesMax is the largest total size of the termination messages in a pod's status, in bytes.
const messagesMax = 12 << 10

// normalize converts the message of a state to the form that the API server returns: valid UTF-8, and no longer than
// the container's share of messagesMax. The API server would change any other message, and each status would differ
// from the stored one.
func (b *builder) normalize(state *corev1.ContainerState) {
	if w := state.Waiting; w != nil && !utf8.ValidString(w.Message) {
		valid := *w
		valid.Message = valid8(w.Message)
		state.Waiting = &valid
	}
	limit := messagesMax / len(b.Slots)
	if t := state.Terminated; t != nil && (len(t.Message) > limit || !utf8.ValidString(t.Message)) {
		bounded := *t
		bounded.Message = truncate(valid8(t.Message), limit)
		state.Terminated = &bounded
	}
}

func valid8(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// truncate shortens s to at most limit bytes without splitting a character.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
