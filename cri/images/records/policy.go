package records

import (
	"fmt"
	"slices"
	"strings"
)

// policy decides when a pod has to prove that it may use an image that is present
// (KubeletConfiguration imagePullCredentialsVerificationPolicy). Create it with newPolicy.
type policy struct {
	name     string
	names    []string
	prefixes []string
}

// newPolicy returns a policy by its name in KubeletConfiguration. exempt is preloadedImagesVerificationAllowlist: image
// names without tag and digest, or prefixes that end in "/*".
func newPolicy(name string, exempt []string) (policy, error) {
	p := policy{name: name}
	for _, pattern := range exempt {
		if err := p.exempt(pattern); err != nil {
			return policy{}, fmt.Errorf("preloadedImagesVerificationAllowlist: pattern %q: %w", pattern, err)
		}
	}
	return p, nil
}

func (p *policy) exempt(pattern string) error {
	prefix, wildcard := strings.CutSuffix(pattern, "*")
	switch {
	case pattern == "" || strings.TrimSpace(pattern) != pattern:
		return fmt.Errorf("is empty or has spaces at its ends")
	case wildcard && (!strings.HasSuffix(prefix, "/") || prefix == "/"), strings.Contains(prefix, "*"):
		return fmt.Errorf("has a wildcard elsewhere than in \"/*\" after at least a registry")
	case wildcard:
		p.prefixes = append(p.prefixes, prefix)
		return nil
	}
	name, err := repository(pattern)
	if err == nil && name != pattern {
		err = fmt.Errorf("has a tag or a digest; write %s", name)
	}
	p.names = append(p.names, name)
	return err
}

// requires reports whether a pod needs credentials for an image that is present. pulled: the agent has pulled it.
func (p policy) requires(image string, pulled bool) bool {
	switch p.name {
	case "NeverVerify":
		return false
	case "NeverVerifyPreloadedImages":
		return pulled
	case "NeverVerifyAllowlistedImages":
		name, err := repository(image)
		if err != nil {
			name = image
		}
		return !slices.Contains(p.names, name) &&
			!slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	return true // AlwaysVerify
}
