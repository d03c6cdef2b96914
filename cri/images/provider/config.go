package provider

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	config "k8s.io/kubelet/config/v1"

	"github.com/nodelet/nodelet/host/boundedfile"
	"github.com/nodelet/nodelet/internal/strict"
)

// configVersions are those of CredentialProviderConfig. All have the same fields, except tokenAttributes, which v1 has
// alone.
var configVersions = []string{"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1",
	"kubelet.config.k8s.io/v1alpha1"}

// read reads and checks a file, or the *.json, *.yaml and *.yml files of a directory in lexical order. hash is the
// kubelet's hash of their content: of the length and the bytes of each.
func read(path string, tokens bool) (all []config.CredentialProvider, hash string, err error) {
	if path == "" {
		return nil, "", errors.New("it is not set, but --image-credential-provider-bin-dir is; set both or none")
	}
	files, err := configFiles(path)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.New()
	from := map[string]string{} // the file of each provider
	for _, file := range files {
		text, err := boundedfile.Read(file, strict.MaxSize)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", file, err)
		}
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		sum.Write(text)
		some, err := decode(text, tokens)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", file, err)
		}
		for _, p := range some {
			if first, twice := from[p.Name]; twice {
				return nil, "", fmt.Errorf("%s: provider %q is already in %s; use each name once", file, p.Name, first)
			}
			from[p.Name] = file
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, "", fmt.Errorf("%s: providers: the list is empty; add a provider or remove the flag", path)
	}
	return all, fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

func configFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".json", ".yaml", ".yml":
			if !e.IsDir() {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no file *.json, *.yaml or *.yml", path)
	}
	return files, nil
}

// decode reads and checks one file.
func decode(text []byte, tokens bool) ([]config.CredentialProvider, error) {
	c := &config.CredentialProviderConfig{}
	tree, err := strict.Parse(text, c, "CredentialProviderConfig", configVersions...)
	if err != nil {
		return nil, err
	}
	if err := strict.Decode(tree, c); err != nil {
		return nil, err
	}
	return c.Providers, validate(c, tokens)
}
