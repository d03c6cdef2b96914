package images

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
)

// Pattern matches the repositories of a login or a credential provider, such as *.example.com:5000/team.
type Pattern struct {
	// text is host, port and path together, for sorting.
	text string
	// host may have * in each of its dot-separated parts; path is a prefix.
	host, port, path string
}

// ParsePattern parses a pattern: a host, optionally a port and a path.
func ParsePattern(text string) (Pattern, error) {
	u, err := url.Parse("https://" + text)
	if wrong, ok := errors.AsType[*url.Error](err); ok {
		err = wrong.Err // without the scheme that was added for parsing
	}
	if err == nil && u.Host == "" {
		err = errors.New("it has no host")
	}
	if err != nil {
		return Pattern{}, fmt.Errorf("%q is not a pattern of images (want one such as *.example.com or "+
			"registry.example.com:5000/team): %w", text, err)
	}
	return Pattern{text: u.Host + u.Path, host: u.Hostname(), port: u.Port(), path: u.Path}, nil
}

// dockerPattern reads a registry as docker configurations name it: a pattern, maybe with a scheme, such as
// https://index.docker.io/v1/. The version at the start of the path belongs to the registry's protocol and is ignored.
func dockerPattern(registry string) (Pattern, bool) {
	registry, secure := strings.CutPrefix(registry, "https://")
	if !secure {
		registry = strings.TrimPrefix(registry, "http://")
	}
	p, err := ParsePattern(registry)
	if err != nil {
		return Pattern{}, false
	}
	host := strings.TrimSuffix(p.text, p.path)
	if strings.HasPrefix(p.path, "/v1/") || strings.HasPrefix(p.path, "/v2/") {
		p.path = p.path[len("/v1"):]
	}
	if p.path == "/" {
		p.path = ""
	}
	p.text = host + p.path
	return p, true
}

// Matches reports whether the pattern matches a repository with its registry, such as docker.io/library/busybox. It
// compares host names part by part, so that * never matches a dot.
func (p Pattern) Matches(repository string) bool {
	registry, repo, _ := strings.Cut(repository, "/")
	at := url.URL{Host: registry} // which knows IPv6 addresses
	if p.port != at.Port() || !strings.HasPrefix("/"+repo, p.path) {
		return false
	}
	patterns, parts := strings.Split(p.host, "."), strings.Split(at.Hostname(), ".")
	if len(patterns) != len(parts) {
		return false
	}
	for i, pattern := range patterns {
		if ok, err := path.Match(pattern, parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
