package podfs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/boundedfile"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	tokenMaxAge          = 24 * time.Hour
	tokenMaxJitter       = 10 * time.Second
	tokenRetry           = time.Minute      // between two renewals; also after one that failed while the old token is good
	tokenMaxSkew         = 10 * time.Minute // a token issued later than that in the future: the clock was set back
	tokenMaxSize         = 1 << 16
	tokenDefaultLifetime = 3600            // seconds, as the API server fills in
	tokenPause           = 5 * time.Minute // between two renewals of a token that may be good for longer
	tokenAlmostNew       = 10 * time.Minute
)

// token makes the file of a token source, and returns when to request the next token. The token on disk is used until
// it is due.
func (c *content) token(ctx context.Context, _ int, source *corev1.VolumeProjection) (payload, time.Time, error) {
	s := source.ServiceAccountToken
	if s == nil {
		return nil, never, nil
	}
	token, received, refresh, err := c.requestToken(ctx, s)
	if err != nil {
		return nil, never, err
	}
	own := c.ownFile([]byte(token), s.User)
	if !received.IsZero() {
		own.note = received.UTC().Format(time.RFC3339)
	}
	files := payload{}
	return files, refresh, files.set(s.Path, own)
}

func (c *content) requestToken(
	ctx context.Context, s *corev1.ServiceAccountTokenProjection,
) (token string, received, refresh time.Time, err error) {
	jitter := jitterOf(c.Request, s)
	old, oldToken := currentToken(c.current, s.Path)
	fits := old.fits(c.Pod, s.Audience)
	old.doubtful = c.doubtAfter(old, jitter)
	if fits && !old.due(c.Now, jitter) {
		return oldToken, old.received, old.refreshAt(c.Now, jitter), nil
	}
	seconds := ptr.Deref(s.ExpirationSeconds, tokenDefaultLifetime)
	fresh, expires := "", never
	if err = c.checkMade(); err == nil {
		fresh, expires, err = c.objects.Token(ctx, c.Pod, s.Audience, seconds)
	}
	switch {
	case err == nil:
		return fresh, c.Now, newClaims(fresh, expires, seconds).refreshAt(c.Now, jitter), nil
	case !fits:
		return "", never, never, fmt.Errorf("failed to fetch token: %w", err)
	case !c.Now.Before(old.expires):
		return "", never, never, fmt.Errorf("token expired and refresh failed: %w", err)
	}
	if old.doubtful = c.Now.Add(tokenPause); !old.due(c.Now, jitter) {
		return oldToken, old.received, old.refreshAt(c.Now, jitter), nil
	}
	c.log.Warn("cannot renew the service account token, keeping the old one",
		"pod", podutil.Name(c.Pod), "volume", c.Volume.Name, "expires", old.expires, "err", err)
	return oldToken, old.received, c.Now.Add(tokenRetry), nil
}

// doubtAfter is when to renew a token that an earlier run of the agent has received, whatever its times say: the API
// server may accept it no more, because its key or the service account was replaced, and a restart is the usual remedy.
// The kubelet requests all tokens again at once. Here that is some minutes after the first mount, which never waits for
// it, because the API server may be away. An almost new token is not renewed: an agent may restart again and again.
func (c *content) doubtAfter(old claims, jitter time.Duration) time.Time {
	received := old.received
	if received.IsZero() {
		received = old.issued
	}
	switch {
	case received.After(c.started.Add(-tokenAlmostNew)):
		return never
	case c.Refresh:
		return c.Now
	}
	return c.Now.Add(tokenRetry + jitter*time.Duration(tokenPause/tokenMaxJitter))
}

// claims is what a service account token says about itself.
type claims struct {
	received       time.Time // when this node received it, by its own clock; zero if that is not known
	doubtful       time.Time // when to renew it if that is earlier than its times say; zero if it is not
	audiences      []string
	issued         time.Time
	expires        time.Time // the API server refuses it from then on
	warnAfter      time.Time // when it should have been renewed, if it is accepted for longer; or zero
	namespace      string
	serviceAccount string
	podUID         string
}

// currentToken reads the token which the volume shows at path. Without one the claims fit nothing.
func currentToken(dir *os.File, path string) (claims, string) {
	raw, note, err := readCurrent(dir, path, tokenMaxSize)
	if err != nil {
		return claims{}, ""
	}
	c, err := parseClaims(string(raw))
	if err != nil {
		return claims{}, ""
	}
	if at, err := time.Parse(time.RFC3339, note); err == nil {
		c.received = at
	}
	return c, string(raw)
}

// readCurrent reads a file that the volume shows, with the note beside it. dir may be nil, for a volume that is not
// there yet.
func readCurrent(dir *os.File, path string, limit int64) (raw []byte, note string, err error) {
	if dir == nil {
		return nil, "", os.ErrNotExist
	}
	if err := checkPath(path); err != nil {
		return nil, "", err
	}
	f, err := beneath.OpenRegular(dir, filepath.Join(dataLink, path), beneath.LinksInside)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	raw, err = boundedfile.ReadAll(f, limit)
	return raw, readNote(f), err
}

// newClaims returns the times of a token just received. Those that the token does not have come from the answer of the
// API server.
func newClaims(token string, expires time.Time, seconds int64) claims {
	c, err := parseClaims(token)
	if err != nil {
		return claims{issued: expires.Add(-time.Duration(seconds) * time.Second), expires: expires}
	}
	return c
}

// parseClaims reads the claims of a JSON web token. It does not check the signature: a process that can write the file
// needs no forged token.
func parseClaims(token string) (claims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}, errors.New("token is not a JWT: it does not have three parts")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return claims{}, errors.New("claims of token are not base64")
	}
	var c struct {
		Audience   audiences `json:"aud"`
		Issued     float64   `json:"iat"`
		Expires    float64   `json:"exp"`
		Kubernetes struct {
			Namespace      string                `json:"namespace"`
			Pod            struct{ UID string }  `json:"pod"`
			ServiceAccount struct{ Name string } `json:"serviceaccount"`
			WarnAfter      float64               `json:"warnafter"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return claims{}, errors.New("claims of token are not the expected JSON") // the error would quote them
	}
	if c.Issued <= 0 || c.Expires <= c.Issued || c.Expires > maxUnix {
		return claims{}, errors.New("token has no sensible iat and exp")
	}
	parsed := claims{
		audiences:      c.Audience,
		issued:         time.Unix(int64(c.Issued), 0),
		expires:        time.Unix(int64(c.Expires), 0),
		namespace:      c.Kubernetes.Namespace,
		serviceAccount: c.Kubernetes.ServiceAccount.Name,
		podUID:         c.Kubernetes.Pod.UID,
	}
	if w := c.Kubernetes.WarnAfter; w > c.Issued && w < c.Expires {
		parsed.warnAfter = time.Unix(int64(w), 0)
	}
	return parsed, nil
}

// maxUnix is in the year 9999; times beyond are nonsense.
const maxUnix = 253402300799

// audiences is one string or a list of them (RFC 7519, section 4.1.3).
type audiences []string

func (a *audiences) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(a))
}

// fits reports whether the token is this pod's, for this audience. The API server's own audience has a name that only
// it knows; there the place of the file has to do.
func (c claims) fits(pod *corev1.Pod, audience string) bool {
	if c.podUID == "" || c.podUID != string(pod.UID) || c.namespace != pod.Namespace {
		return false
	}
	if c.serviceAccount != pod.Spec.ServiceAccountName {
		return false
	}
	return audience == "" || slices.Equal(c.audiences, []string{audience})
}

// TokenRenewal is when a token that is valid from one time to another has lived 80 % of its time or a day, whichever
// comes first.
func TokenRenewal(issued, end time.Time) time.Time {
	at := end.Add(-end.Sub(issued) / 5)
	if day := issued.Add(tokenMaxAge); day.Before(at) {
		at = day
	}
	return at
}

// renewal is when to renew the token; a little earlier by jitter, so that pods started together do not renew together.
// It is used for no longer than that after it was received: the clock of the node may be behind that of the issuer.
func (c claims) renewal(jitter time.Duration) time.Time {
	end := c.expires
	if !c.warnAfter.IsZero() {
		end = c.warnAfter
	}
	at := TokenRenewal(c.issued, end).Add(-jitter)
	if own := c.received.Add(at.Sub(c.issued)); !c.received.IsZero() && own.Before(at) {
		at = own
	}
	return earlier(at, c.doubtful)
}

// due reports whether to request a new token. A token from the future means that the clock was set back, so that
// the remaining lifetime is unknown.
func (c claims) due(now time.Time, jitter time.Duration) bool {
	from := c.received
	if from.IsZero() {
		from = c.issued.Add(-tokenMaxSkew)
	}
	return now.Before(from) || !now.Before(c.renewal(jitter))
}

// refreshAt is the renewal as a time to wait for, with this clock and the issuer's apart: never later than for a
// token that was received now, and never at once, which would request token after token.
func (c claims) refreshAt(now time.Time, jitter time.Duration) time.Time {
	if c.received.IsZero() {
		c.received = now
	}
	at := c.renewal(jitter)
	if earliest := now.Add(tokenRetry); at.Before(earliest) {
		at = earliest
	}
	return at
}

// jitterOf is the same at each call for the same token, so that RefreshAt stays where it is.
func jitterOf(r Request, s *corev1.ServiceAccountTokenProjection) time.Duration {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%s", r.Pod.UID, r.Volume.Name, s.Path)
	return time.Duration(h.Sum64() % uint64(tokenMaxJitter))
}
