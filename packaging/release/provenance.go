package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// subject is an artefact in an in-toto statement.
type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// writeProvenance writes an in-toto statement v1 with SLSA provenance v1 of all artefacts so far. It has no times and
// no name of a machine: a second build makes the same file.
func writeProvenance(o options) error {
	subjects, err := subjects(o.out)
	if err != nil {
		return err
	}
	statement := map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType": "https://github.com/nodelet/nodelet/blob/main/docs/release.md#how-it-is-built",
				"externalParameters": map[string]any{
					"version": o.version, "architectures": o.arches, "tags": o.tags, "gcflags": o.gcflags,
					"ldflags": o.ldflags,
				},
				"resolvedDependencies": []map[string]any{
					{"uri": "git+https://github.com/nodelet/nodelet", "digest": map[string]string{"gitCommit": o.commit}},
					{"uri": "pkg:golang/std@" + runtime.Version()},
				},
			},
			"runDetails": map[string]any{"builder": map[string]string{"id": o.builder}},
		},
	}
	return writeArtefact(o.out, "nodelet-"+o.version+".provenance.json", func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(statement)
	})
}

// subjects returns the files of a directory, sorted by name, with their SHA-256.
func subjects(dir string) ([]subject, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []subject
	for _, e := range entries {
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		all = append(all, subject{Name: e.Name(), Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	return all, nil
}
