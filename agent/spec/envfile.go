package spec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// EnvFile names a file with variables in one of the pod's volumes (KEP-3721).
type EnvFile struct {
	Volume string
	// Path is relative to the volume's root, also with "/" at its beginning. The caller must resolve it beneath that
	// root.
	Path string
}

// EnvFiles lists the files that the container's environment needs. The caller reads them, rejects a file that is larger
// than MaxEnvFile, and passes their contents in Objects.
func EnvFiles(c *corev1.Container) []EnvFile {
	var files []EnvFile
	for _, v := range c.Env {
		if v.ValueFrom != nil && v.ValueFrom.FileKeyRef != nil {
			ref := v.ValueFrom.FileKeyRef
			files = append(files, EnvFile{Volume: ref.VolumeName, Path: ref.Path})
		}
	}
	return files
}

// MaxEnvFile is the largest size of an environment file, in bytes.
const MaxEnvFile = 64 << 10

// fileValue looks up one variable in a file. An optional reference to a file that does not exist leaves the variable
// unset, as the API documents; the kubelet fails on it. An empty value counts as found; for the kubelet it is missing.
func fileValue(in *ContainerInput, ref *corev1.FileKeySelector) (string, error) {
	if err := checkSubPath(strings.TrimLeft(ref.Path, "/")); err != nil || ref.Path == "" {
		return "", fmt.Errorf("fileKeyRef path %q must be a path in the volume without ..", ref.Path)
	}
	if _, ok := in.Volumes[ref.VolumeName]; !ok {
		return "", fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	content, ok := in.Objects.EnvFiles[EnvFile{Volume: ref.VolumeName, Path: ref.Path}]
	if !ok {
		return "", missing(ref.Optional, fmt.Errorf("file %q not found in volume %q", ref.Path, ref.VolumeName))
	}
	value, ok, err := envFileValue(string(content), ref.Key)
	if err != nil {
		return "", fmt.Errorf("couldn't parse env file %q in volume %q: %w", ref.Path, ref.VolumeName, err)
	}
	if !ok {
		return "", missing(ref.Optional,
			fmt.Errorf("environment variable key %q not found in file %q of volume %q", ref.Key, ref.Path, ref.VolumeName))
	}
	return value, nil
}

// envFileValue finds the first assignment to key. The format is a subset of the shell's syntax: assignments
// NAME='value', blank lines, and comments, on their own line or after a value. A value may have several lines and has
// no escapes. As in a shell, a blank after the = makes the value empty; the rest of that line is ignored. A name with a
// blank inside, as in "export NAME='value'", is a name that no variable refers to.
func envFileValue(content, key string) (value string, ok bool, err error) {
	line := 0
	for content != "" {
		line++
		var text string
		text, content, _ = strings.Cut(content, "\n")
		text = strings.TrimLeft(strings.TrimSuffix(text, "\r"), " \t")
		if text == "" || text[0] == '#' {
			continue
		}
		name, rest, found := strings.Cut(text, "=")
		if !found || name == "" || strings.TrimRight(name, " \t") != name {
			return "", false, fmt.Errorf("line %d: want NAME='value'", line)
		}
		if rest != "" && (rest[0] == ' ' || rest[0] == '\t') {
			if name == key {
				return "", true, nil
			}
			continue
		}
		quoted, isQuoted := strings.CutPrefix(rest, "'")
		if !isQuoted {
			return "", false, fmt.Errorf("line %d: the value of %s must be in single quotes", line, name)
		}
		value, after, lines, closed := untilQuote(quoted, &content)
		if !closed {
			return "", false, fmt.Errorf("line %d: the value of %s has no closing quote", line, name)
		}
		if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
			return "", false, fmt.Errorf("line %d: text after the value of %s", line+lines, name)
		}
		if name == key {
			return value, true, nil
		}
		line += lines
	}
	return "", false, nil
}

// untilQuote reads a value up to its closing quote. If text has no closing quote, it reads further lines from content.
func untilQuote(text string, content *string) (value, after string, lines int, closed bool) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "'")
		out.WriteString(before)
		if found {
			return out.String(), rest, lines, true
		}
		if *content == "" {
			return "", "", lines, false
		}
		out.WriteByte('\n')
		text, *content, _ = strings.Cut(*content, "\n")
		text = strings.TrimSuffix(text, "\r")
		lines++
	}
}
