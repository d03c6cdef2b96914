package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// auditPolicy lets the API server log each request of a node's agent once.
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

// audit counts the requests of agents from the audit log of the API server.
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
	return []string{"--audit-policy-file=" + filepath.Join(a.dir, "policy.yaml"), "--audit-log-path=" + a.log(),
		"--audit-log-mode=blocking"}
}

func (a *audit) log() string { return filepath.Join(a.dir, "audit.log") }

// request has the relevant fields of an audit event.
type request struct {
	Verb      string `json:"verb"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
}

func (r request) String() string {
	if r.ObjectRef.Subresource == "" {
		return r.Verb + " " + r.ObjectRef.Resource
	}
	return r.Verb + " " + r.ObjectRef.Resource + "/" + r.ObjectRef.Subresource
}

// requests counts all requests in the log so far by verb and resource.
func (a *audit) requests() (map[string]int, error) {
	f, err := os.Open(a.log())
	if errors.Is(err, os.ErrNotExist) {
		return map[string]int{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts := map[string]int{}
	for d := json.NewDecoder(f); ; {
		var r request
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			return counts, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		counts[r.String()]++
	}
}

// perPod returns how many requests were made for each of n pods, in all under "" and by verb and resource after ": ".
// What less than every tenth pod needs is not listed.
func perPod(before, after map[string]int, n int) map[string]float64 {
	each := map[string]float64{}
	for what, count := range after {
		share := float64(count-before[what]) / float64(n)
		each[""] += share
		if share >= 0.1 {
			each[": "+what] = share
		}
	}
	return each
}
