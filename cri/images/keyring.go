package images

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/boundedfile"
)

// Source is the origin of a credential: a pull secret, or a service account for whose token a provider gave it. The
// zero value is the node itself, or no credential.
type Source struct {
	UID             types.UID
	Namespace, Name string
	// ServiceAccount: the source is a service account, not a pull secret.
	ServiceAccount bool
}

// credential is a login for the registries that match a pattern.
type credential struct {
	Pattern
	login  *Login
	source Source
}

// keyring finds the credentials for an image. The longer and more special patterns come first, as the kubelet sorts
// them.
type keyring []credential

// add adds the logins of one source.
func (k *keyring) add(source Source, logins map[string]*Login) {
	for _, registry := range slices.Sorted(maps.Keys(logins)) {
		if p, ok := dockerPattern(registry); ok {
			*k = append(*k, credential{Pattern: p, login: logins[registry], source: source})
		}
	}
}

func (k keyring) sort() {
	sort.SliceStable(k, func(i, j int) bool { return k[i].text > k[j].text })
}

// lookup returns the credentials for a repository with its registry, such as docker.io/library/busybox. Those under
// Docker Hub's old name, index.docker.io, count if no other matches.
func (k keyring) lookup(repository string) []credential {
	onHub := strings.HasPrefix(repository, "docker.io/")
	var found, hub []credential
	for _, c := range k {
		switch {
		case c.Matches(repository):
			found = append(found, c)
		case onHub && c.host == "index.docker.io" && c.port == "" && c.path == "":
			hub = append(hub, c)
		}
	}
	if len(found) > 0 {
		return found
	}
	return hub
}

// secretKeyring reads pull secrets. problems says which ones cannot be used and why, without any content.
func secretKeyring(secrets []*corev1.Secret) (k keyring, problems []string) {
	for _, s := range secrets {
		var logins map[string]*Login
		var skipped int
		var err error
		key := corev1.DockerConfigJsonKey
		switch {
		case s.Type == corev1.SecretTypeDockerConfigJson && len(s.Data[key]) > 0:
			logins, skipped, err = dockerConfigJSON(s.Data[key])
		case s.Type == corev1.SecretTypeDockercfg && len(s.Data[corev1.DockerConfigKey]) > 0:
			key = corev1.DockerConfigKey
			logins, skipped, err = dockercfg(s.Data[key])
		default:
			err = fmt.Errorf("is not of type %s with data", corev1.SecretTypeDockerConfigJson)
			key = "type " + string(s.Type)
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("pull secret %s/%s was not used: %s %v", s.Namespace, s.Name, key, err))
			continue
		}
		if skipped > 0 {
			problems = append(problems, fmt.Sprintf(
				"%d entries of pull secret %s/%s were not used: no username and password, and no auth that is base64 of both",
				skipped, s.Namespace, s.Name))
		}
		k.add(Source{UID: s.UID, Namespace: s.Namespace, Name: s.Name}, logins)
	}
	k.sort()
	return k, problems
}

// nodeConfigFiles returns the files in which the kubelet looks for the node's own registry credentials, in its order.
// The first readable one counts. Without $HOME, as in a service of systemd, the working directory stands for it: a
// login that root has made for itself is not one of the node.
func nodeConfigFiles(rootDir string) []string {
	home, _ := os.UserHomeDir()
	files := []string{
		filepath.Join(rootDir, "config.json"), "config.json",
		filepath.Join(home, ".docker/config.json"), "/.docker/config.json",
		filepath.Join(rootDir, ".dockercfg"), ".dockercfg",
		filepath.Join(home, ".dockercfg"), "/.dockercfg",
	}
	for i, file := range files {
		if absolute, err := filepath.Abs(file); err == nil {
			files[i] = absolute
		}
	}
	return slices.Compact(files)
}

// maxConfig is the size limit of a node configuration in bytes; a secret has the same limit.
const maxConfig = 1 << 20

// nodeKeyring reads the first of files that exists and is valid.
func nodeKeyring(files []string) (k keyring, problems []string) {
	for _, file := range files {
		logins, skipped, err := readConfig(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("registry credentials of the node were not used: %s: %v", file, err))
			continue
		}
		if skipped > 0 {
			problems = append(problems, fmt.Sprintf("%d entries of %s were not used", skipped, file))
		}
		k.add(Source{}, logins)
		k.sort()
		return k, problems
	}
	return nil, problems
}

func readConfig(file string) (logins map[string]*Login, skipped int, err error) {
	text, err := boundedfile.Read(file, maxConfig)
	if err != nil {
		return nil, 0, err
	}
	if filepath.Base(file) == ".dockercfg" {
		return dockercfg(text)
	}
	return dockerConfigJSON(text)
}
