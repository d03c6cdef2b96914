package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"
)

const (
	groupKnown     = "system:authenticated"
	groupUnknown   = "system:unauthenticated"
	nameUnknown    = "system:anonymous"
	maxTokenLength = 64 << 10
	// tokenProtocol, with the token behind it, stands among the sub-protocols of a WebSocket handshake, where browsers can
	// send no header.
	tokenProtocol = "base64url.bearer.authorization.k8s.io."
)

// identity is who asks.
type identity struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string]authenticationv1.ExtraValue
}

// identifier finds out who asks.
type identifier struct {
	authorities *authorities // nil: no client certificate counts
	tokens      rest.Interface
	ttl         time.Duration
	anonymous   bool
	known       *memory[*identity] // nil for a token that is not valid
}

func newIdentifier(cfg *Config) (*identifier, error) {
	a, err := newAuthorities(cfg.ClientCAFile)
	if err != nil {
		return nil, err
	}
	return &identifier{authorities: a, tokens: cfg.Tokens, ttl: cfg.TokenTTL, anonymous: cfg.Anonymous, known: newMemory[*identity]()}, nil
}

// identify says who asks. A credential that is not good is an error, even where a caller without any would be let in.
func (i *identifier) identify(r *http.Request) (*identity, error) {
	byCert, certErr := i.certificate(r.TLS)
	token, shown, err := bearerToken(r) // in any case: the token must not go on to the runtime
	if byCert != nil {
		return byCert, nil
	}
	if err != nil {
		return nil, err
	}
	if shown {
		return i.token(r.Context(), token)
	}
	if certErr != nil {
		return nil, certErr
	}
	if !i.anonymous {
		return nil, errors.New("no credentials")
	}
	return &identity{Name: nameUnknown, Groups: []string{groupUnknown}}, nil
}

// certificate is who a client certificate names: the user is its common name, the groups are its organizations. Both
// are nil where there is no certificate.
func (i *identifier) certificate(state *tls.ConnectionState) (*identity, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil, nil
	}
	if i.authorities == nil {
		return nil, errors.New("client certificates are not taken: authentication.x509.clientCAFile is not set")
	}
	roots, err := i.authorities.now()
	if err != nil {
		return nil, err
	}
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	leaf := state.PeerCertificates[0]
	if _, err := leaf.Verify(o); err != nil {
		return nil, fmt.Errorf("client certificate of %q: %w", short(leaf.Subject.CommonName), err)
	}
	if leaf.Subject.CommonName == "" {
		return nil, errors.New("the client certificate names nobody")
	}
	return &identity{Name: leaf.Subject.CommonName, Groups: withKnown(leaf.Subject.Organization)}, nil
}

// token asks the API server whose a token is.
func (i *identifier) token(ctx context.Context, token string) (*identity, error) {
	if i.tokens == nil {
		return nil, errors.New("bearer tokens are not taken: there is no API server to ask, or authentication.webhook.enabled is off")
	}
	sum := sha256.Sum256([]byte(token)) // tokens themselves are not kept
	who, err := i.known.get(ctx, string(sum[:]), func(ctx context.Context) (*identity, time.Duration, error) {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		if err := i.tokens.Post().Resource("tokenreviews").Body(review).Do(ctx).Into(review); err != nil {
			return nil, 0, fmt.Errorf("ask the API server about a bearer token: %w", err)
		}
		if !review.Status.Authenticated {
			return nil, i.ttl, nil
		}
		u := review.Status.User
		return &identity{Name: u.Username, UID: u.UID, Groups: withKnown(u.Groups), Extra: u.Extra}, i.ttl, nil
	})
	if err == nil && who == nil {
		err = errors.New("the bearer token is not valid")
	}
	return who, err
}

func withKnown(groups []string) []string {
	if slices.Contains(groups, groupKnown) {
		return groups
	}
	return append(slices.Clone(groups), groupKnown)
}

// bearerToken takes the token out of a request: from the header Authorization, or from the sub-protocols of a WebSocket
// handshake, of which it is removed.
func bearerToken(r *http.Request) (token string, shown bool, err error) {
	if scheme, rest, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " "); strings.EqualFold(scheme, "Bearer") {
		if token = strings.TrimSpace(rest); token == "" || len(token) > maxTokenLength {
			return "", false, errors.New("the header Authorization holds no good bearer token")
		}
		return token, true, nil
	}
	const header = "Sec-WebSocket-Protocol"
	if len(r.Header.Values(header)) == 0 {
		return "", false, nil
	}
	var others []string
	for p := range strings.SplitSeq(strings.Join(r.Header.Values(header), ","), ",") {
		p = strings.TrimSpace(p)
		encoded, is := strings.CutPrefix(p, tokenProtocol)
		if !is {
			others = append(others, p)
			continue
		}
		text, err := base64.RawURLEncoding.DecodeString(encoded)
		if err != nil || shown || len(text) == 0 || len(text) > maxTokenLength {
			return "", false, errors.New("the WebSocket sub-protocols hold no good bearer token")
		}
		token, shown = string(text), true
	}
	if shown {
		if len(others) == 0 {
			return "", false, errors.New("a WebSocket handshake with a bearer token must offer another sub-protocol too")
		}
		r.Header.Set(header, strings.Join(others, ","))
	}
	return token, shown, nil
}
