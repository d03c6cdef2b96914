package provider

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kubelet/config/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/host/boundedfile"
)

// maxConfig is the size limit of a file in bytes.
const maxConfig = 4 << 20

// configVersions are those of CredentialProviderConfig. All have the same fields, except tokenAttributes, which v1 has
// alone.
var configVersions = []string{"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1",
	"kubelet.config.k8s.io/v1alpha1"}

// read reads and checks a file, or the *.json, *.yaml and *.yml files of a directory in lexical order.
func read(path string, tokens bool) ([]config.CredentialProvider, error) {
	if path == "" {
		return nil, errors.New("it is not set, but --image-credential-provider-bin-dir is; set both or none")
	}
	files, err := configFiles(path)
	if err != nil {
		return nil, err
	}
	var all []config.CredentialProvider
	from := map[string]string{} // the file of each provider
	for _, file := range files {
		some, err := readFile(file, tokens)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, p := range some {
			if first, twice := from[p.Name]; twice {
				return nil, fmt.Errorf("%s: provider %q is already in %s; use each name once", file, p.Name, first)
			}
			from[p.Name] = file
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: providers: the list is empty; add a provider or remove the flag", path)
	}
	return all, nil
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

func readFile(file string, tokens bool) ([]config.CredentialProvider, error) {
	text, err := boundedfile.Read(file, maxConfig)
	if err != nil {
		return nil, err
	}
	return decode(text, tokens)
}

// secondDocument matches "---" after anything but comments and blank lines.
var secondDocument = regexp.MustCompile(`(?m)^[^#\s-](?s:.*?)^---(\s|$)`)

// decode reads and checks one file.
func decode(text []byte, tokens bool) ([]config.CredentialProvider, error) {
	switch {
	case len(text) > maxConfig:
		return nil, fmt.Errorf("it has more than %d MiB; this is not a CredentialProviderConfig", maxConfig>>20)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("it is empty; it needs apiVersion: %s, kind: CredentialProviderConfig and providers",
			configVersions[0])
	case secondDocument.Match(text):
		return nil, errors.New(`it has more than one document ("---"); put each into a file of its own, in a directory`)
	}
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	var head metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(asJSON, &head); err != nil {
		return nil, fmt.Errorf("it is not a CredentialProviderConfig: %w", err)
	}
	if err := checkHead(head); err != nil {
		return nil, err
	}
	c := &config.CredentialProviderConfig{}
	strict, err := kjson.UnmarshalStrict(asJSON, c)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	return c.Providers, validate(c, tokens)
}
