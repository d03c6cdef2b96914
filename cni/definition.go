package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// NetworkFile reads the file of an additional network. It returns nil if the file does not exist.
func NetworkFile(path string) (*Network, error) {
	n, err := readNetwork(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return n, err
}

// ParseDefinition parses a NetworkAttachmentDefinition (k8s.cni.cncf.io/v1) in JSON. Its spec.config is a network
// configuration; one without a name gets that of the object.
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
		return nil, fmt.Errorf("parse the NetworkAttachmentDefinition: %w", err)
	}
	what := fmt.Sprintf("spec.config of NetworkAttachmentDefinition %s/%s", d.Metadata.Namespace, d.Metadata.Name)
	if d.Spec.Config == "" {
		return nil, fmt.Errorf("%s is empty: put the network configuration there", what)
	}
	config := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(d.Spec.Config), &config); err != nil {
		return nil, fmt.Errorf("%s is not a JSON object: %w", what, err)
	}
	if _, named := config["name"]; !named {
		config["name"], _ = json.Marshal(d.Metadata.Name)
	}
	whole, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	n, err := parseNetwork(whole)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return n, nil
}
