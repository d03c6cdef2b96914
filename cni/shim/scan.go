package shim

// Socket returns the value of the field "socket" at the top level of a JSON object. Nested fields of that name, which a
// pod's annotations may contain, do not count. It returns "" for text of another form, or with escapes in the value:
// main, which has a JSON parser, handles those.
func Socket(text string) string {
	depth, found := 0, ""
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			word, end := quoted(text, i)
			if end < 0 {
				return ""
			}
			i = end
			next := skipSpace(text, end+1)
			if depth != 1 || next >= len(text) || text[next] != ':' {
				continue // a value, or nested
			}
			if word == "socket" {
				if found != "" {
					return "" // twice
				}
				start := skipSpace(text, next+1)
				if start >= len(text) || text[start] != '"' {
					return ""
				}
				if found, i = quoted(text, start); i < 0 || found == "" {
					return ""
				}
			} else {
				for j := range word { // an escaped name could be any name
					if word[j] == '\\' {
						return ""
					}
				}
			}
		}
	}
	for i := range found {
		if found[i] == '\\' {
			return ""
		}
	}
	return found
}

// quoted returns the text between the quote at start and the next one, and the position of that one, or -1.
func quoted(text string, start int) (word string, end int) {
	for i := start + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return text[start+1 : i], i
		}
	}
	return "", -1
}

func skipSpace(text string, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}
