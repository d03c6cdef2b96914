package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/test/testbed"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: certify DIRECTORY, which is named vX.Y/PRODUCT")
		os.Exit(2)
	}
	required, err := requiredSpecs(context.Background())
	if err == nil {
		err = check(os.Args[1], required)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "certify:", err)
		os.Exit(1)
	}
	fmt.Printf("%s has what a submission needs; all %d specs passed\n", os.Args[1], len(required))
}

// requiredSpecs reads the names of the specs that a product must pass from the suite's sources.
func requiredSpecs(ctx context.Context) ([]string, error) {
	cache, err := testbed.OpenCache(os.Stderr)
	if err != nil {
		return nil, err
	}
	source, err := cache.ModuleSource(ctx, "suite")
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(source, "test/conformance/testdata/conformance.yaml"))
	if err != nil {
		return nil, err
	}
	return parseSpecs(text)
}

func parseSpecs(text []byte) (names []string, err error) {
	var list []struct {
		CodeName string `json:"codename"`
	}
	if err := yaml.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the list of conformance tests: %w", err)
	}
	for _, test := range list {
		names = append(names, test.CodeName)
	}
	if len(names) == 0 {
		return nil, errors.New("read the list of conformance tests: it is empty")
	}
	return names, nil
}
