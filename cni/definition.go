package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// NetworkFile reads a file with an additional network; without an error it gives nil where there is none.
func NetworkFile(path string) (*Network, error) {
	n, err := readNetwork(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return n, err
}

// ParseDefinition reads a NetworkAttachmentDefinition (k8s.cni.cncf.io/v1) as JSON. Its spec.config is a network
// configuration; one without a name gets the object's.
func ParseDefinition(text []byte) (*Network, error) {
	var d struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Spec struct {
			Config string `json:"config"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("read the NetworkAttachmentDefinition: %w", err)
	}
	what := fmt.Sprintf("spec.config of NetworkAttachmentDefinition %s/%s", d.Metadata.Namespace, d.Metadata.Name)
	if d.Spec.Config == "" {
		return nil, fmt.Errorf("%s is empty: put the network configuration there", what)
	}
	config := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(d.Spec.Config), &config); err != nil {
		return nil, fmt.Errorf("%s is no JSON object: %w", what, err)
	}
	if _, named := config["name"]; !named {
		config["name"], _ = json.Marshal(d.Metadata.Name)
	}
	whole, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	n, err := ParseNetwork(whole)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return n, nil
}
