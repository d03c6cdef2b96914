package volumes

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/volumes/podfs"
)

// tokens remembers the service account tokens of CSI volumes. A driver that wants to be called again each minute gets
// the same one until it is due, also while the API server is away. The zero value is empty.
type tokens struct {
	mu   sync.Mutex
	kept map[tokenKey]keptToken
}

// tokenKey says whose token it is, and what was requested.
type tokenKey struct {
	pod      types.UID
	audience string
	seconds  int64
}

type keptToken struct {
	tokenStatus
	requested, renew time.Time
}

// get returns the token that is remembered, or requests one. If that fails, an older one counts until it expires.
func (t *tokens) get(k tokenKey, now time.Time, request func() (string, time.Time, error)) (tokenStatus, error) {
	now = now.Round(0) // the wall clock: the monotonic one stands still while the machine is suspended
	t.mu.Lock()
	old := t.kept[k]
	t.mu.Unlock()
	behind := now.Before(old.requested) // the clock was set back: how long the token is valid is not known
	if now.Before(old.renew) && !behind {
		return old.tokenStatus, nil
	}
	token, expires, err := request()
	switch {
	case err == nil:
	case now.Before(old.Expires) && !behind:
		return old.tokenStatus, nil
	default:
		return tokenStatus{}, err
	}
	end := now.Add(time.Duration(k.seconds) * time.Second)
	if expires.Before(end) {
		end = expires
	}
	fresh := keptToken{tokenStatus{token, expires.UTC()}, now, podfs.TokenRenewal(now, end)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept == nil {
		t.kept = map[tokenKey]keptToken{}
	}
	maps.DeleteFunc(t.kept, func(_ tokenKey, old keptToken) bool { return !now.Before(old.Expires) })
	t.kept[k] = fresh
	return fresh.tokenStatus, nil
}

// forget removes the tokens of a pod that ends.
func (t *tokens) forget(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.kept, func(k tokenKey, _ keptToken) bool { return k.pod == pod })
}
