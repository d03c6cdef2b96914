package records

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

const (
	group      = "kubelet.config.k8s.io/"
	intentKind = "ImagePullIntent"
	recordKind = "ImagePulledRecord"
	filePrefix = "sha256-"
)

// typeMeta is the head of each file. The kubelet writes v1beta1 and also reads v1alpha1, which has the same fields.
type typeMeta struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
}

func (m typeMeta) check(kind string) error {
	if m.Kind != kind || m.APIVersion != group+"v1beta1" && m.APIVersion != group+"v1alpha1" {
		return fmt.Errorf("got %s %q, want %s %sv1beta1", m.Kind, m.APIVersion, kind, group)
	}
	return nil
}

// intent is the file of a pull that has begun.
type intent struct {
	typeMeta
	Image string `json:"image"`
}

// record is the file of an image that was pulled.
type record struct {
	typeMeta
	LastUpdatedTime metav1.Time `json:"lastUpdatedTime"`
	// ImageRef is the runtime's ID of the image.
	ImageRef string `json:"imageRef"`
	// CredentialMapping has the credentials by the name in the pod, without tag and digest.
	CredentialMapping map[string]Credentials `json:"credentialMapping,omitempty"`
}

// Credentials say who may use an image. The zero value allows no pod.
type Credentials struct {
	Secrets         []Secret         `json:"kubernetesSecrets,omitempty"`
	ServiceAccounts []ServiceAccount `json:"kubernetesServiceAccounts,omitempty"`
	// EveryPod: the image was pulled without credentials or with those of the node.
	EveryPod bool `json:"nodePodsAccessible,omitempty"`
}

// Secret is a pull secret, and a hash of the login in it that the image was pulled with; see HashLogin.
type Secret struct {
	UID            string `json:"uid"`
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	CredentialHash string `json:"credentialHash"`
}

// ServiceAccount is an account for whose token a credential provider gave a login.
type ServiceAccount struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// HashLogin returns the hash by which the kubelet compares logins.
func HashLogin(username, password, email string) string {
	text, err := json.Marshal(struct {
		Username string `json:"username,omitempty"`
		Password string `json:"password,omitempty"`
		Email    string `json:"email,omitempty"`
	}{username, password, email})
	if err != nil {
		return "" // strings can always be encoded
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

func fileName(key string) string { return fmt.Sprintf("%s%x", filePrefix, sha256.Sum256([]byte(key))) }

func decode(text []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(text, into)
	return errors.Join(append(strict, err)...)
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and times can always be encoded
	}
	return append(text, '\n')
}

func (s Secret) sameLogin(o Secret) bool {
	return s.CredentialHash != "" && s.CredentialHash == o.CredentialHash
}

func (s Secret) sameObject(o Secret) bool {
	o.CredentialHash = s.CredentialHash
	return s == o
}

// secretOf returns the first of a pod's secrets with which the image may be used: c has the same object or the same
// login.
func (c Credentials) secretOf(pod []Secret) (Secret, bool) {
	for _, p := range pod {
		if slices.ContainsFunc(c.Secrets, func(s Secret) bool { return s.sameObject(p) || s.sameLogin(p) }) {
			return p, true
		}
	}
	return Secret{}, false
}

// accountOf reports whether the image may be used with one of a pod's service accounts.
func (c Credentials) accountOf(pod []ServiceAccount) bool {
	return slices.ContainsFunc(pod, func(a ServiceAccount) bool { return slices.Contains(c.ServiceAccounts, a) })
}

// merge returns c with more added, and whether that changed it. A secret replaces an older login of the same object.
func (c Credentials) merge(more Credentials) (Credentials, bool) {
	if c.EveryPod {
		return c, false
	}
	if more.EveryPod {
		return Credentials{EveryPod: true}, true
	}
	changed := false
	c.Secrets, c.ServiceAccounts = slices.Clone(c.Secrets), slices.Clone(c.ServiceAccounts)
	for _, s := range more.Secrets {
		if slices.Contains(c.Secrets, s) {
			continue
		}
		changed = true
		c.Secrets = append(slices.DeleteFunc(c.Secrets, s.sameObject), s)
	}
	for _, a := range more.ServiceAccounts {
		if !slices.Contains(c.ServiceAccounts, a) {
			changed = true
			c.ServiceAccounts = append(c.ServiceAccounts, a)
		}
	}
	sort.Slice(c.Secrets, func(i, j int) bool { return c.Secrets[i].key() < c.Secrets[j].key() })
	sort.Slice(c.ServiceAccounts, func(i, j int) bool { return c.ServiceAccounts[i].key() < c.ServiceAccounts[j].key() })
	return c, changed
}

func (s Secret) key() string         { return s.Namespace + "/" + s.Name + "/" + s.UID }
func (a ServiceAccount) key() string { return a.Namespace + "/" + a.Name + "/" + a.UID }

// repository returns an image name as the pod gives it, without tag and digest.
func repository(image string) (string, error) {
	parsed, err := reference.Parse(image)
	if err != nil {
		return "", fmt.Errorf("parse image name %q: %w", image, err)
	}
	if d, ok := parsed.(reference.Digested); ok {
		image = strings.TrimSuffix(image, "@"+d.Digest().String())
	}
	if t, ok := parsed.(reference.Tagged); ok {
		image = strings.TrimSuffix(image, ":"+t.Tag())
	}
	return image, nil
}

// target is the repository of an image, with its registry, and its tag; empty for a name with a digest: runtimes ignore
// the tag of one that has both.
type target struct{ repository, tag string }

// targetOf returns the target of an image. Docker Hub and the tag latest may be left out in its name.
func targetOf(image string) target {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return target{repository: image}
	}
	t := target{repository: named.Name()}
	if _, digested := named.(reference.Digested); digested {
		return t
	}
	if tagged, ok := reference.TagNameOnly(named).(reference.Tagged); ok {
		t.tag = tagged.Tag()
	}
	return t
}

// mayBring reports whether a pull to the target t may bring an image that is asked for by the target of: by a digest
// what a pull of any tag brings may be found, by a tag only what a pull of this tag brings.
func (t target) mayBring(of target) bool {
	return t == of || t.repository == of.repository && of.tag == ""
}

// isID reports whether an image is named by the runtime's ID, or by the beginning of it.
func isID(image string) bool { return strings.HasPrefix(image, "sha256:") }
