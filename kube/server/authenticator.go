package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/apis/asn1"
	"k8s.io/client-go/rest"
)

const (
	groupKnown     = "system:authenticated"
	groupUnknown   = "system:unauthenticated"
	nameUnknown    = "system:anonymous"
	maxTokenLength = 64 << 10
	// credentialID is extra information about a user: which certificate it has shown.
	credentialID = "authentication.kubernetes.io/credential-id"
	// tokenProtocol, followed by the token, is a subprotocol of a WebSocket handshake: browsers cannot send headers there.
	tokenProtocol = "base64url.bearer.authorization.k8s.io."
)

// identity is an authenticated caller.
type identity struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string]authenticationv1.ExtraValue
}

// authenticator finds out who sends a request.
type authenticator struct {
	clientCAs *clientCAs // nil: client certificates are not accepted
	tokens    rest.Interface
	ttl       time.Duration
	anonymous bool
	known     *answerCache[*identity] // nil for a token that is not valid
}

func newAuthenticator(cfg *Config) (*authenticator, error) {
	a, err := newClientCAs(cfg.ClientCAFile)
	if err != nil {
		return nil, err
	}
	return &authenticator{
		clientCAs: a,
		tokens:    cfg.Tokens,
		ttl:       cfg.TokenTTL,
		anonymous: cfg.Anonymous,
		known:     newAnswerCache[*identity](),
	}, nil
}

// authenticate returns the caller of a request. An invalid credential is an error, even if anonymous requests are
// allowed. Where nothing checks tokens, a token is no credential; so with certificates.
func (a *authenticator) authenticate(r *http.Request) (*identity, error) {
	byCert, certErr := a.certificate(r.TLS)
	token, shown, err := bearerToken(r) // always, because the token must not reach the runtime
	if byCert != nil {
		return byCert, nil
	}
	if err != nil {
		return nil, err
	}
	if shown && (a.tokens != nil || !a.anonymous) {
		return a.token(r.Context(), token)
	}
	if certErr != nil && (a.clientCAs != nil || !a.anonymous) {
		return nil, certErr
	}
	if !a.anonymous {
		return nil, errors.New("no credentials")
	}
	return &identity{Name: nameUnknown, Groups: []string{groupUnknown}}, nil
}

// certificate returns the caller that a client certificate names: its common name is the user, its organizations are
// the groups, and it may have a UID. Both results are nil without a certificate.
func (a *authenticator) certificate(state *tls.ConnectionState) (*identity, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil, nil
	}
	if a.clientCAs == nil {
		return nil, errors.New("client certificates are not accepted: authentication.x509.clientCAFile is not set")
	}
	roots, err := a.clientCAs.now()
	if err != nil {
		return nil, err
	}
	o := x509.VerifyOptions{
		Roots:         roots,
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	leaf := state.PeerCertificates[0]
	if _, err := leaf.Verify(o); err != nil {
		return nil, fmt.Errorf("client certificate of %q: %w", short(leaf.Subject.CommonName), err)
	}
	if leaf.Subject.CommonName == "" {
		return nil, errors.New("the client certificate has no common name")
	}
	uid, err := certificateUID(leaf)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(leaf.Raw)
	return &identity{
		Name:   leaf.Subject.CommonName,
		UID:    uid,
		Groups: withKnown(leaf.Subject.Organization),
		Extra:  map[string]authenticationv1.ExtraValue{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}, nil
}

// certificateUID returns the UID of the user that a client certificate names, or "". One that is empty, or a second
// one, is an error.
func certificateUID(c *x509.Certificate) (uid string, err error) {
	for _, name := range c.Subject.Names {
		if !name.Type.Equal(asn1.X509UID()) {
			continue
		}
		text, is := name.Value.(string)
		if !is || text == "" || uid != "" {
			return "", fmt.Errorf("client certificate of %q: it must have one UID, as text", short(c.Subject.CommonName))
		}
		uid = text
	}
	return uid, nil
}

// token asks the API server who owns a token (TokenReview).
func (a *authenticator) token(ctx context.Context, token string) (*identity, error) {
	if a.tokens == nil {
		return nil, errors.New("bearer tokens are not accepted: " +
			"there is no API server, or authentication.webhook.enabled is off")
	}
	sum := sha256.Sum256([]byte(token)) // so that no token is kept
	who, err := a.known.get(ctx, string(sum[:]), func(ctx context.Context) (*identity, time.Duration, error) {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		if err := create(ctx, a.tokens, "tokenreviews", review); err != nil {
			return nil, 0, fmt.Errorf("create TokenReview: %w", err)
		}
		switch {
		case review.Status.Authenticated:
		case review.Status.Error != "": // the token may be valid, but could not be checked
			return nil, 0, fmt.Errorf("the API server does not accept the bearer token: %s", review.Status.Error)
		default:
			return nil, a.ttl, nil
		}
		u := review.Status.User
		return &identity{Name: u.Username, UID: u.UID, Groups: withKnown(u.Groups), Extra: u.Extra}, a.ttl, nil
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

// bearerToken returns the token of a request: from the header Authorization, or from the subprotocols of a WebSocket
// handshake, where it is removed.
func bearerToken(r *http.Request) (token string, shown bool, err error) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if strings.EqualFold(scheme, "Bearer") {
		if token = strings.TrimSpace(rest); token == "" || len(token) > maxTokenLength {
			return "", false, errors.New("the header Authorization contains no valid bearer token")
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
			return "", false, errors.New("the WebSocket subprotocols contain no valid bearer token")
		}
		token, shown = string(text), true
	}
	if shown {
		if len(others) == 0 {
			return "", false, errors.New("a WebSocket handshake with a bearer token must offer another subprotocol too")
		}
		r.Header.Set(header, strings.Join(others, ","))
	}
	return token, shown, nil
}
