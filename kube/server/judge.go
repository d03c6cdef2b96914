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

// judge says who may what, by asking the API server.
type judge struct {
	node            string
	access          rest.Interface
	all             bool
	allowed, denied time.Duration
	known           *memory[bool]
}

func newJudge(cfg *Config) *judge {
	return &judge{node: cfg.Node, access: cfg.Access, all: cfg.AlwaysAllow, allowed: cfg.AllowedTTL, denied: cfg.DeniedTTL,
		known: newMemory[bool]()}
}

// allows tells whether somebody may do verb with any one of the sub-resources of this node, asked in their order.
func (j *judge) allows(ctx context.Context, who *identity, verb string, subresources []string) (bool, error) {
	if j.all {
		return true, nil
	}
	if j.access == nil {
		return false, errors.New("there is no API server to ask; authorization.mode AlwaysAllow needs none")
	}
	for _, sub := range subresources {
		ok, err := j.ask(ctx, who, verb, sub)
		if ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func (j *judge) ask(ctx context.Context, who *identity, verb, subresource string) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: who.Name, UID: who.UID, Groups: who.Groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: j.node,
		},
	}
	if len(who.Extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(who.Extra))
		for k, v := range who.Extra {
			spec.Extra[k] = authorizationv1.ExtraValue(v)
		}
	}
	text, err := json.Marshal(spec) // its maps are in order, so it can be a key
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(text)
	return j.known.get(ctx, string(sum[:]), func(ctx context.Context) (bool, time.Duration, error) {
		review := &authorizationv1.SubjectAccessReview{Spec: spec}
		if err := j.access.Post().Resource("subjectaccessreviews").Body(review).Do(ctx).Into(review); err != nil {
			return false, 0, fmt.Errorf("ask the API server what %q may do: %w", who.Name, err)
		}
		if review.Status.Allowed && !review.Status.Denied {
			return true, j.allowed, nil
		}
		return false, j.denied, nil
	})
}
