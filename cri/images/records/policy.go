package records

import (
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
// names without tag and digest, or prefixes that end in "/*". Package config has checked them.
func newPolicy(name string, exempt []string) policy {
	p := policy{name: name}
	for _, pattern := range exempt {
		if prefix, wildcard := strings.CutSuffix(pattern, "*"); wildcard {
			p.prefixes = append(p.prefixes, prefix)
		} else {
			p.names = append(p.names, pattern)
		}
	}
	return p
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
