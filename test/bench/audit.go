package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
)

// auditPolicy has the API server note each request of a node's agent once.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: ["system:nodes"]
  verbs: ["get", "list", "create", "update", "patch", "delete"]
  resources:
  - group: ""
- level: None
`

// audit counts the requests that agents make, as the API server sees them.
type audit struct{ dir string }

func newAudit() (*audit, error) {
	dir, err := os.MkdirTemp("", "nodelet-bench-")
	if err != nil {
		return nil, err
	}
	return &audit{dir}, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(auditPolicy), 0o600)
}

func (a *audit) remove() { _ = os.RemoveAll(a.dir) }

func (a *audit) args() []string {
	return []string{"--audit-policy-file=" + filepath.Join(a.dir, "policy.yaml"), "--audit-log-path=" + a.log(), "--audit-log-mode=blocking"}
}

func (a *audit) log() string { return filepath.Join(a.dir, "audit.log") }

// requests is how many requests have been noted so far.
func (a *audit) requests() (int, error) {
	text, err := os.ReadFile(a.log())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return bytes.Count(text, []byte("\n")), err
}
