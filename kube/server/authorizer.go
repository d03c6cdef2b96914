package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// authorizer reports whether a caller may do verb with one of the subresources of this node.
type authorizer func(ctx context.Context, who *identity, verb string, subresources []string) (bool, error)

func newAuthorizer(cfg *Config) authorizer {
	switch {
	case cfg.AlwaysAllow:
		return func(context.Context, *identity, string, []string) (bool, error) { return true, nil }
	case cfg.Access == nil:
		return func(context.Context, *identity, string, []string) (bool, error) {
			return false, errors.New("no API server to authorize the request; authorization.mode AlwaysAllow needs none")
		}
	}
	r := &reviewer{
		node:    cfg.Node,
		access:  cfg.Access,
		allowed: cfg.AllowedTTL,
		denied:  cfg.DeniedTTL,
		known:   newAnswerCache[bool](),
	}
	return r.allows
}

// reviewer asks the API server what callers may do (SubjectAccessReview).
type reviewer struct {
	node            string
	access          rest.Interface
	allowed, denied time.Duration
	known           *answerCache[bool]
}

// allows asks for the subresources in their order.
func (a *reviewer) allows(ctx context.Context, who *identity, verb string, subresources []string) (bool, error) {
	for _, sub := range subresources {
		ok, err := a.ask(ctx, who, verb, sub)
		if ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func (a *reviewer) ask(ctx context.Context, who *identity, verb, subresource string) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: who.Name, UID: who.UID, Groups: who.Groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: a.node,
		},
	}
	if len(who.Extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(who.Extra))
		for k, v := range who.Extra {
			spec.Extra[k] = authorizationv1.ExtraValue(v)
		}
	}
	text, err := json.Marshal(spec) // maps are sorted, so the text can be a key
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(text)
	return a.known.get(ctx, string(sum[:]), func(ctx context.Context) (bool, time.Duration, error) {
		review := &authorizationv1.SubjectAccessReview{Spec: spec}
		if err := create(ctx, a.access, "subjectaccessreviews", review); err != nil {
			return false, 0, fmt.Errorf("create SubjectAccessReview for %q: %w", who.Name, err)
		}
		if review.Status.Allowed && !review.Status.Denied {
			return true, a.allowed, nil
		}
		return false, a.denied, nil
	})
}
