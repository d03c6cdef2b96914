package spec

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxArguments bounds what a process gets at its start, in bytes: its command, its arguments, and its environment, each
// on its own. The kernel takes 6 MiB of all together, so that nothing that could run is refused.
const maxArguments = 8 << 20

// The containers of a pod that are not Large share podArguments of the same, because they are created side by side. The
// variables of some hundred services take more than 100 KiB. With ordinaryArguments a container is never Large.
const (
	podArguments      = 2 << 20
	ordinaryArguments = 64 << 10
)

// Expand replaces each $(NAME) in s with the value that lookup returns for NAME. If lookup does not know NAME, the
// reference stays unchanged. $$ stands for a single $, so $$(NAME) gives the text $(NAME). Everything else is
// literal, also a reference that is not closed. Inserted values are not expanded again. A result of more than limit
// bytes is an error: a few references to values that have references again would fill the memory.
func Expand(s string, limit int, lookup func(string) (string, bool)) (string, error) {
	var out strings.Builder
	shortest := len(s) - strings.LastIndexByte(s, ')') // a shorter rest of s closes no reference
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			i = len(s)
		}
		out.WriteString(s[:i])
		if out.Len() > limit {
			return "", fmt.Errorf("with the values of its references it has more than %d bytes", limit)
		}
		if i == len(s) {
			return out.String(), nil
		}
		s = s[i+1:]
		s = s[expandOne(&out, s, len(s) >= shortest, lookup):]
	}
}

// expandOne writes the expansion of the text s that follows a $, and returns how many bytes of s it consumed. s is not
// empty. closes: there is a ) in s; to look for it at each of many references that are not closed would take too long.
func expandOne(out *strings.Builder, s string, closes bool, lookup func(string) (string, bool)) int {
	switch {
	case s[0] == '$':
		out.WriteByte('$')
		return 1
	case s[0] == '(' && closes:
		end := strings.IndexByte(s, ')')
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
