package images

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
)

// Login is a name and a password for a registry. It is always held by pointer: then fmt prints an address if it is
// nested in another value, and the result of String if it is alone. So it cannot get into a log by mistake.
type Login struct {
	Username, Password string
	// Email is not sent to registries; the kubelet's hash of a login includes it.
	Email string
}

func (Login) String() string { return "(credential)" }

// GoString is String for %#v.
func (l Login) GoString() string { return l.String() }

// errNotDockerConfig does not quote what was read, as JSON errors might.
var errNotDockerConfig = errors.New("has no valid docker configuration")

// dockerConfigJSON reads the content of a .docker/config.json: {"auths": {"registry": {...}}}. skipped counts entries
// that cannot be used.
func dockerConfigJSON(text []byte) (logins map[string]*Login, skipped int, err error) {
	var config struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	if json.Unmarshal(text, &config) != nil {
		return nil, 0, errNotDockerConfig
	}
	logins, skipped = entries(config.Auths)
	return logins, skipped, nil
}

// dockercfg reads the content of the older .dockercfg: {"registry": {...}}.
func dockercfg(text []byte) (logins map[string]*Login, skipped int, err error) {
	var config map[string]json.RawMessage
	if json.Unmarshal(text, &config) != nil {
		return nil, 0, errNotDockerConfig
	}
	logins, skipped = entries(config)
	return logins, skipped, nil
}

func entries(raw map[string]json.RawMessage) (logins map[string]*Login, skipped int) {
	logins = make(map[string]*Login, len(raw))
	for registry, text := range raw {
		switch l := entry(text); {
		case l == nil:
			skipped++
		case *l != Login{}: // credential helpers leave an empty entry
			logins[registry] = l
		}
	}
	return logins, skipped
}

// entry reads one registry's login: username and password, or both in auth. It returns nil if the entry cannot be used.
func entry(text json.RawMessage) *Login {
	var e struct {
		Username string `json:"username"`
		Password string `json:"password"`
		Email    string `json:"email"`
		Auth     string `json:"auth"`
	}
	if json.Unmarshal(text, &e) != nil {
		return nil
	}
	if e.Auth == "" {
		return &Login{Username: e.Username, Password: e.Password, Email: e.Email}
	}
	// Both forms are in use, with and without padding.
	auth, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(e.Auth), "="))
	if err != nil {
		return nil
	}
	username, password, ok := strings.Cut(string(auth), ":")
	if !ok {
		return nil
	}
	return &Login{Username: username, Password: password, Email: e.Email}
}
