package provider

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	config "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/nodelet/nodelet/cri/images"
)

// apiVersions are those of requests and answers. They have the same fields, except tokens and annotations, which v1
// has alone.
var apiVersions = []string{"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1beta1",
	"credentialprovider.kubelet.k8s.io/v1alpha1"}

// checker collects errors with the paths of their fields.
type checker struct{ errs []error }

func (v *checker) bad(field, format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// validate checks one file. An empty list is valid: other files may have providers.
func validate(c *config.CredentialProviderConfig, tokens bool) error {
	v := &checker{}
	for i := range c.Providers {
		p := &c.Providers[i]
		field := fmt.Sprintf("providers[%d]", i)
		v.provider(field, p)
		if p.TokenAttributes == nil {
			continue
		}
		field += ".tokenAttributes"
		switch {
		case c.APIVersion != configVersions[0]:
			v.bad(field, "it needs the file to be of apiVersion: %s", configVersions[0])
		case !tokens:
			v.bad(field, "it needs the feature gate KubeletServiceAccountTokenForCredentialProviders")
		case p.APIVersion != api.SchemeGroupVersion.String():
			v.bad(field, "it needs a provider of apiVersion: %s", api.SchemeGroupVersion)
		default:
			v.tokens(field, p.TokenAttributes)
		}
	}
	return errors.Join(v.errs...)
}

func (v *checker) provider(field string, p *config.CredentialProvider) {
	switch {
	case p.Name == "":
		v.bad(field+".name", "it is missing; it is the name of the program")
	case strings.ContainsAny(p.Name, "/ \x00") || p.Name == "." || p.Name == "..":
		v.bad(field+".name", "%q is not a valid name of a program: it must contain no slash and no space", p.Name)
	}
	if !slices.Contains(apiVersions, p.APIVersion) {
		v.bad(field+".apiVersion", "%q is none of %s", p.APIVersion, strings.Join(apiVersions, ", "))
	}
	if len(p.MatchImages) == 0 {
		v.bad(field+".matchImages", "it is missing; without a pattern the provider is never asked")
	}
	for i, text := range p.MatchImages {
		if _, err := images.ParsePattern(text); err != nil {
			v.bad(fmt.Sprintf("%s.matchImages[%d]", field, i), "%v", err)
		}
	}
	switch d := p.DefaultCacheDuration; {
	case d == nil:
		v.bad(field+".defaultCacheDuration", "it is missing; want a duration such as 12h, or 0s")
	case d.Duration < 0:
		v.bad(field+".defaultCacheDuration", "%s is below 0s", d.Duration)
	}
	for i, e := range p.Env {
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") || strings.Contains(e.Value, "\x00") {
			v.bad(fmt.Sprintf("%s.env[%d]", field, i),
				"%q cannot be the name of an environment variable, or its value has a zero byte", e.Name)
		}
	}
	for i, a := range p.Args {
		if strings.Contains(a, "\x00") {
			v.bad(fmt.Sprintf("%s.args[%d]", field, i), "it has a zero byte")
		}
	}
}

func (v *checker) tokens(field string, t *config.ServiceAccountTokenAttributes) {
	if t.ServiceAccountTokenAudience == "" {
		v.bad(field+".serviceAccountTokenAudience", "it is missing")
	}
	types := []config.ServiceAccountTokenCacheType{config.ServiceAccountServiceAccountTokenCacheType,
		config.TokenServiceAccountTokenCacheType}
	if !slices.Contains(types, t.CacheType) {
		v.bad(field+".cacheType", "%q is neither ServiceAccount nor Token", t.CacheType)
	}
	required, optional := t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys
	switch {
	case t.RequireServiceAccount == nil:
		v.bad(field+".requireServiceAccount", "it is missing; want true or false")
	case !*t.RequireServiceAccount && len(required) > 0:
		v.bad(field+".requiredServiceAccountAnnotationKeys", "they need requireServiceAccount: true")
	}
	seen := map[string]bool{}
	for i, k := range slices.Concat(required, optional) {
		name := field + ".requiredServiceAccountAnnotationKeys"
		if i >= len(required) {
			name = field + ".optionalServiceAccountAnnotationKeys"
		}
		for _, problem := range validation.IsQualifiedName(strings.ToLower(k)) {
			v.bad(name, "%q: %s", k, problem)
		}
		if seen[k] {
			v.bad(name, "%q is there twice", k)
		}
		seen[k] = true
	}
}
