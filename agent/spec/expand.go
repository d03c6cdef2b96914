package spec

import (
	"strings"
	"unicode/utf8"
)

// Expand replaces each $(NAME) in s with the value that lookup returns for NAME. If lookup does not know NAME, the
// reference stays unchanged. $$ stands for a single $, so $$(NAME) gives the text $(NAME). Everything else is
// literal, also a reference that is not closed. Inserted values are not expanded again.
func Expand(s string, lookup func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		s = s[i+1:]
		s = s[expandOne(&out, s, lookup):]
	}
}

// expandOne writes the expansion of the text s that follows a $, and returns how many bytes of s it consumed. s is not
// empty.
func expandOne(out *strings.Builder, s string, lookup func(string) (string, bool)) int {
	switch s[0] {
	case '$':
		out.WriteByte('$')
		return 1
	case '(':
		end := strings.IndexByte(s, ')')
		if end < 0 {
			out.WriteString("$(")
			return 1
		}
		if value, ok := lookup(s[1:end]); ok {
			out.WriteString(value)
		} else {
			out.WriteString("$" + s[:end+1])
		}
		return end + 1
	}
	_, size := utf8.DecodeRuneInString(s)
	out.WriteString("$" + s[:size])
	return size
}
