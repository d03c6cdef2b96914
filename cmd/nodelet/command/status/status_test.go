package status

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/test/waittest"
)

// TestProblems checks that the text has a line for each problem with a manifest.
func TestProblems(t *testing.T) {
	r := &Report{Node: "n", Problems: []string{"web.yaml: not a pod", "db.yaml: empty"}}
	var out strings.Builder
	if err := r.write(&out, time.Now()); err != nil {
		t.Fatal(err)
	}
	want := "problem       web.yaml: not a pod\nproblem       db.yaml: empty\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant it to end with\n%s", got, want)
	}
}

// TestCertificates checks that an expired certificate is named as such, also while the agent does not answer.
func TestCertificates(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for problem, last := range map[string]string{"": "pods          0 of 0 ready\n", "no answer": ""} {
		r := &Report{Error: problem, Certificates: []certificate{
			{"client", now.Add(-time.Hour)}, {"server", now.Add(90 * 24 * time.Hour)},
		}}
		var out strings.Builder
		if err := r.write(&out, now); err != nil {
			t.Fatal(err)
		}
		want := "certificate   client, expired at 2026-01-01T23:00:00Z\ncertificate   server, valid for 90d\n" + last
		if got := out.String(); !strings.HasSuffix(got, want) {
			t.Errorf("got\n%s\nwant it to end with\n%s", got, want)
		}
	}
}

// TestCertificateDir checks that the certificates are those of the agent, whose --cert-dir does not follow --root-dir,
// and that the text says where it looked if no agent answers.
func TestCertificateDir(t *testing.T) {
	root := t.TempDir()
	text, _, err := cert.GenerateSelfSignedCertKey("node", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "data/pki/kubelet-client-current.pem")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	call := command.Call{Context: t.Context(), Root: root}
	var out strings.Builder
	if err := Collect(call, root).write(&out, time.Now()); err != nil {
		t.Fatal(err)
	}
	const want = "certificate   none in /var/lib/kubelet/pki, the default of --cert-dir\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("no agent: got\n%s\nwant it to end with\n%s", got, want)
	}
	local := &podapi.Local{
		Supervisor: agent.NewSupervisor(agent.Config{Waiting: func() error { return errors.New("no runtime") }}),
		Node:       func() *corev1.Node { return &corev1.Node{} },
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		local.Serve(ctx, config.Paths{Root: root, Certificates: "/data/pki"}, slog.New(slog.DiscardHandler))
	}()
	waittest.Until(t, "the certificate of the agent", func() bool {
		all := Collect(call, root).Certificates
		return len(all) == 1 && all[0].Name == "client"
	})
	stop()
	<-served
}
